"""The decider of the family ``lease``: one entity per lease key, without a session.

It binds the inputs of auth_lease and the other methods of the contract's registry to their rules in
``lease_rules``. The limit of logins counts the keys loaded on this node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta
from msgspec.structs import asdict

from rookery.actors.kernel import Effect
from rookery.actors.kernel.machines import (
    MachineBinding,
    MachineDecider,
    RejectionKind,
    Reservation,
    TransitionEffect,
    TransitionRejected,
)
from rookery.actors.leases import lease_rules
from rookery.actors.leases.effects import EFFECT_TYPES, lease_effects, pending_lease_effects
from rookery.actors.leases.lease_machine import LEASE
from rookery.actors.leases.lease_rules import LeaseEntry
from rookery.actors.leases.refresh_rules import (
    BeginFlow,
    EndedWaits,
    EndFlow,
    IntendRefresh,
    RefreshEnded,
    begin_flow,
    end_attempt,
    end_flow,
    end_waits,
    intend_attempt,
    lease_status,
    on_due,
    on_rejected,
    on_wait,
    request_attempt,
)
from rookery.schemas.codec import FactCodec
from rookery.schemas.commands import COMMANDS, HandleInput, LeaseDue, LeaseRejected, LeaseWait
from rookery.schemas.envelope import Command, Fact
from rookery.schemas.errors import CodedError, Refused
from rookery.schemas.facts import lease as facts
from rookery.schemas.machines.lease import AuthLeaseSnapshot, LeaseKey
from rookery.schemas.machines.views import LeaseView
from rookery.schemas.scalars import Unsigned

__all__ = ["LeaseState", "LeasesDecider"]

T = TypeVar("T")

_RESTORE: Final = "restore_auth_lifecycle_snapshot"
_VERBS: Final = ("leases", "lease_due", "lease_wait", "lease_rejected")


class _NoParams(msgspec.Struct, forbid_unknown_fields=True):
    """The parameters of a method without any."""


class _RequestParams(msgspec.Struct, forbid_unknown_fields=True):
    again: bool = False


class _RefreshFailedParams(msgspec.Struct, forbid_unknown_fields=True):
    permanent: bool


class _BoundedSnapshot(AuthLeaseSnapshot, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A snapshot from outside, with bounded numbers."""

    expires_at: Unsigned | None = None
    generation: Unsigned = 0
    credential_published_at_millis: Unsigned | None = None


class _RestoreParams(msgspec.Struct, forbid_unknown_fields=True):
    snapshot: _BoundedSnapshot
    expires_at: Annotated[int, Meta(ge=0)] | None = None
    """The inputs that it leads to check it: the largest number means never."""


class LeaseState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one key."""

    entry: LeaseEntry = LeaseEntry()


def _lease_view(entry: LeaseEntry, _: Mapping[str, Any]) -> LeaseView:
    return LeaseView(**asdict(lease_rules.lease_snapshot(entry)))


class LeasesDecider(MachineDecider):
    """Decides the commands of the family ``lease``."""

    family = "lease"
    verbs: Mapping[str, type[msgspec.Struct]] = {verb: COMMANDS[verb] for verb in _VERBS}
    codec: FactCodec[facts.LeaseFact] = FactCodec(facts.LEASE_FACTS)
    bindings = (MachineBinding(LEASE, "entry", _lease_view, ("snapshot",)),)
    initial_state = LeaseState()

    def __init__(self, epoch: str = "") -> None:
        """``epoch``: identifies the process, which renews credentials; without it none does, and
        clients may put every input."""
        super().__init__()
        self._inputs |= dict.fromkeys(_METHODS, self.bindings[0])
        self._flows: dict[str, int] = {}
        self._flows_total = 0
        self._epoch = epoch
        self.effect_types = EFFECT_TYPES if epoch else frozenset()

    def check_key(self, key: str) -> None:
        LeaseKey.parse(key)

    def decide(self, state: LeaseState, command: Command[Any], *, now_ms: int) -> Sequence[Fact]:
        entry, lease_key = state.entry, LeaseKey.parse(command.key)
        left: Sequence[Fact] = ()
        match command.body:
            case HandleInput(input=on):
                if self._epoch and on == _RESTORE:
                    _check_restore(entry, lease_key)
                left = super().decide(state, command, now_ms=now_ms)
            case LeaseDue(credential=entry.generation):
                left = on_due(entry, lease_key, now_ms=now_ms)
            case LeaseDue():
                """The timer of an older credential."""
            case LeaseWait() as wait:
                left = on_wait(entry, lease_key, wait, now_ms=now_ms)
            case LeaseRejected(credential=credential):
                left = on_rejected(entry, lease_key, credential, now_ms=now_ms)
            case IntendRefresh() as intent:
                left = intend_attempt(entry, lease_key, intent, epoch=self._epoch, now_ms=now_ms)
            case RefreshEnded() as ended:
                left = end_attempt(entry, lease_key, ended, now_ms=now_ms)
            case EndedWaits() as ended:
                left = end_waits(entry, ended)
            case BeginFlow() as flow:
                flows = self._other_flows(command.key) + _outstanding_flows(entry)
                left = begin_flow(entry, lease_key, flow, flows=flows, now_ms=now_ms)
            case EndFlow() as end:
                left = end_flow(entry, lease_key, end)
        return left

    def reservation(self, state: LeaseState, command: Command[HandleInput]) -> Reservation | None:
        del state
        if not self._epoch:
            return None
        key = command.key
        return Reservation(
            f"the node renews the credential of {key}",
            f"rookery leases refresh {key}, or rookery leases login {key}",
        )

    def decide_input(
        self, state: LeaseState, key: str, on: str, params: Mapping[str, Any]
    ) -> Sequence[facts.LeaseFact]:
        entry, lease_key = state.entry, LeaseKey.parse(key)
        if (method := _METHODS.get(on)) is not None:
            return method(entry, lease_key, params)
        flows = self._other_flows(key) + _outstanding_flows(entry)
        return (lease_rules.decide_input(entry, lease_key, on, params, outstanding_flows=flows),)

    def _other_flows(self, key: str) -> int:
        return self._flows_total - self._flows.get(key, 0)

    def evolve(self, state: LeaseState, fact: facts.LeaseFact) -> LeaseState:
        return LeaseState(entry=lease_rules.evolve(state.entry, fact))

    def reply(
        self, state: LeaseState, command: Command[Any], facts: Sequence[Fact]
    ) -> msgspec.Struct | CodedError:
        match command.body:
            case HandleInput():
                return super().reply(state, command, facts)
            case LeaseDue() | LeaseWait() | LeaseRejected():
                return _lease_view(state.entry, {})
            case body:
                return lease_status(state.entry, body, facts, self._epoch)

    def requested_effects(
        self, state: LeaseState, fact: facts.LeaseFact
    ) -> Sequence[TransitionEffect]:
        return lease_rules.effects(state.entry, fact)

    def effects(self, state: LeaseState, fact: Any) -> Sequence[Effect]:
        return lease_effects(state.entry, fact)

    def pending_effects(self, state: LeaseState, key: str) -> Sequence[Effect]:
        return pending_lease_effects(state.entry, key) if self._epoch else ()

    def on_state(self, key: str, state: LeaseState | None) -> None:
        flows = 0 if state is None else _outstanding_flows(state.entry)
        self._flows_total += flows - self._flows.pop(key, 0)
        if flows:
            self._flows[key] = flows


def _check_restore(entry: LeaseEntry, key: LeaseKey) -> None:
    """Refuse to publish a credential that the realm's secrets do not have."""
    if not entry.sealed_as:
        raise TransitionRejected(
            f"{LEASE.handle}::{_RESTORE}",
            f"the realm's secrets have no credential of {key} to publish again",
            RejectionKind.GUARD_REJECTED,
            hint=f"rookery leases login {key}",
        )


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


def _request_credential(
    entry: LeaseEntry, key: LeaseKey, params: Mapping[str, Any]
) -> Sequence[facts.LeaseFact]:
    """An operator requests a newer credential, in any phase."""
    parsed = _convert_params(params, _RequestParams)
    return request_attempt(entry, key, again=parsed.again)


def _restore(
    entry: LeaseEntry, key: LeaseKey, params: Mapping[str, Any]
) -> Sequence[facts.LeaseFact]:
    parsed = _convert_params(params, _RestoreParams)
    snapshot = AuthLeaseSnapshot(**asdict(parsed.snapshot))
    return lease_rules.restore_snapshot(entry, key, snapshot, parsed.expires_at)


def _undo_release(
    entry: LeaseEntry, _: LeaseKey, params: Mapping[str, Any]
) -> Sequence[facts.LeaseFact]:
    _convert_params(params, _NoParams)
    fact = lease_rules.undo_release(entry)
    return () if fact is None else (fact,)


_METHODS: Final[dict[str, Method]] = {
    "request_credential": _request_credential,
    "release_lease": _release,
    "release_credential_lifecycle": _release_lifecycle,
    "refresh_failed": _refresh_failed,
    _RESTORE: _restore,
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
