"""The decider of the family ``lease``: one entity per lease key, without a session.

It binds the inputs of auth_lease and the other methods of the contract's registry to their rules in
``lease_rules``. The limit of logins counts the keys loaded on this node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import asdict

from rookery.actors.kernel.machines import MachineBinding, MachineDecider, TransitionEffect
from rookery.actors.leases import lease_rules
from rookery.actors.leases.lease_machine import LEASE
from rookery.actors.leases.lease_rules import LeaseEntry
from rookery.schemas.codec import FactCodec
from rookery.schemas.commands import COMMANDS
from rookery.schemas.errors import Refused
from rookery.schemas.facts import lease as facts
from rookery.schemas.integers import Unsigned
from rookery.schemas.machines.lease import AuthLeaseSnapshot, LeaseKey
from rookery.schemas.machines.views import LeaseView

__all__ = ["LeaseState", "LeasesDecider"]

T = TypeVar("T")


class _NoParams(msgspec.Struct, forbid_unknown_fields=True):
    """The parameters of a method without any."""


class _RefreshFailedParams(msgspec.Struct, forbid_unknown_fields=True):
    permanent: bool


class _BoundedSnapshot(AuthLeaseSnapshot, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A snapshot from outside, with bounded numbers."""

    expires_at: Unsigned | None = None
    generation: Unsigned = 0
    credential_published_at_millis: Unsigned | None = None


class _RestoreParams(msgspec.Struct, forbid_unknown_fields=True):
    snapshot: _BoundedSnapshot
    expires_at: Unsigned | None = None


class LeaseState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one key."""

    entry: LeaseEntry = LeaseEntry()


def _lease_view(entry: LeaseEntry, _: Mapping[str, Any]) -> LeaseView:
    return LeaseView(**asdict(lease_rules.lease_snapshot(entry)))


class LeasesDecider(MachineDecider):
    """Decides the commands of the family ``lease``."""

    family = "lease"
    verbs: Mapping[str, type[msgspec.Struct]] = {"leases": COMMANDS["leases"]}
    codec: FactCodec[facts.LeaseFact] = FactCodec(facts.LEASE_FACTS)
    bindings = (MachineBinding(LEASE, "entry", _lease_view, ("snapshot",)),)
    initial_state = LeaseState()

    def __init__(self) -> None:
        super().__init__()
        self._inputs |= dict.fromkeys(_METHODS, self.bindings[0])
        self._flows: dict[str, int] = {}
        self._flows_total = 0

    def check_key(self, key: str) -> None:
        LeaseKey.parse(key)

    def decide_input(
        self, state: LeaseState, key: str, on: str, params: Mapping[str, Any]
    ) -> Sequence[facts.LeaseFact]:
        entry, lease_key = state.entry, LeaseKey.parse(key)
        if (method := _METHODS.get(on)) is not None:
            return method(entry, lease_key, params)
        flows = self._flows_total - self._flows.get(key, 0) + _outstanding_flows(entry)
        return (lease_rules.decide_input(entry, lease_key, on, params, outstanding_flows=flows),)

    def evolve(self, state: LeaseState, fact: facts.LeaseFact) -> LeaseState:
        return LeaseState(entry=lease_rules.evolve(state.entry, fact))

    def requested_effects(
        self, state: LeaseState, fact: facts.LeaseFact
    ) -> Sequence[TransitionEffect]:
        return lease_rules.effects(state.entry, fact)

    def on_state(self, key: str, state: LeaseState | None) -> None:
        flows = 0 if state is None else _outstanding_flows(state.entry)
        self._flows_total += flows - self._flows.pop(key, 0)
        if flows:
            self._flows[key] = flows


# --- the methods that are no inputs -------------------------------------------------------------

Method = Callable[[LeaseEntry, LeaseKey, Mapping[str, Any]], Sequence[facts.LeaseFact]]


def _release(
    entry: LeaseEntry, _: LeaseKey, params: Mapping[str, Any]
) -> Sequence[facts.LeaseFact]:
    _convert_params(params, _NoParams)
    return (lease_rules.release_lease(entry),)


def _release_lifecycle(
    entry: LeaseEntry, _: LeaseKey, params: Mapping[str, Any]
) -> Sequence[facts.LeaseFact]:
    _convert_params(params, _NoParams)
    return (lease_rules.release_credential_lifecycle(entry),)


def _refresh_failed(
    entry: LeaseEntry, key: LeaseKey, params: Mapping[str, Any]
) -> Sequence[facts.LeaseFact]:
    parsed = _convert_params(params, _RefreshFailedParams)
    return (lease_rules.refresh_failed(entry, key, permanent=parsed.permanent),)


def _restore(
    _entry: LeaseEntry, _key: LeaseKey, params: Mapping[str, Any]
) -> Sequence[facts.LeaseFact]:
    parsed = _convert_params(params, _RestoreParams)
    snapshot = AuthLeaseSnapshot(**asdict(parsed.snapshot))
    fact = lease_rules.restore_snapshot(snapshot, parsed.expires_at)
    return () if fact is None else (fact,)


def _undo_release(
    entry: LeaseEntry, _: LeaseKey, params: Mapping[str, Any]
) -> Sequence[facts.LeaseFact]:
    _convert_params(params, _NoParams)
    fact = lease_rules.undo_release(entry)
    return () if fact is None else (fact,)


_METHODS: Final[dict[str, Method]] = {
    "release_lease": _release,
    "release_credential_lifecycle": _release_lifecycle,
    "refresh_failed": _refresh_failed,
    "restore_auth_lifecycle_snapshot": _restore,
    "undo_release": _undo_release,
}


def _convert_params(params: Mapping[str, Any], kind: type[T]) -> T:
    try:
        return msgspec.convert(params, kind)
    except msgspec.ValidationError as error:
        code = "UNKNOWN_FIELD" if "unknown field" in str(error) else "INVALID_ARGUMENT"
        raise Refused(code, str(error)) from None


def _outstanding_flows(entry: LeaseEntry) -> int:
    return 0 if entry.lease is None else entry.lease.outstanding_flows
