"""Rules for a lease key, around the machine of its lease. Pure.

The machine knows one lease. These rules add keys without a lease, the number and time of
publications, what a release removes and preserves, and snapshots. The actor stores one entry per
key and counts logins over all keys. The time of a publication is the fact's ``at_ms``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from immutables import Map
from msgspec.structs import force_setattr, replace

from rookery.actors.kernel.machines import (
    Edition,
    RejectionKind,
    TransitionEffect,
    TransitionRejected,
)
from rookery.actors.leases.lease_machine import LEASE, clear
from rookery.actors.leases.state import REFRESH_WINDOW_SECS, Lease
from rookery.schemas.facts import lease as facts
from rookery.schemas.machines.lease import AuthLeasePhase, AuthLeaseSnapshot, LeaseKey
from rookery.schemas.scalars import U64_MAX, saturate

__all__ = [
    "LeaseEntry",
    "LoginFlowsReleased",
    "ReleasedLease",
    "WaitingCall",
    "decide_input",
    "effects",
    "evolve",
    "lease_snapshot",
    "refresh_failed",
    "release_credential_lifecycle",
    "release_lease",
    "restore_snapshot",
    "undo_release",
]

_ADMISSIONS: Final = ("admit_oauth_browser_flow", "admit_oauth_device_flow")
_OF_CREDENTIAL: Final = (
    "mark_expiring",
    "begin_refresh",
    "complete_refresh",
    "refresh_failed_transient",
    "refresh_failed_permanent",
    "mark_reauth_required",
    "observe_credential_freshness",
)
"""Inputs that need a published credential; a lease that only waits for a login has none."""
_DROPPED_MAX: Final = 4
_ADMITTED: Final = (facts.BrowserFlowAdmitted, facts.DeviceFlowAdmitted)
_UNMATCHED: Final = RejectionKind.NO_MATCHING_TRANSITION
_EXPIRY: Final = ("expires_at_ts", "new_expires_at")


class ReleasedLease(msgspec.Struct, frozen=True, kw_only=True):
    """What a release removed, so that it can be undone."""

    lease: Lease
    credential_published_at_millis: int | None = None


class WaitingCall(msgspec.Struct, frozen=True):
    """A call that waits for a fresh credential."""

    session: str
    is_fresh: bool = False
    """Whether the credential is fresh now, so that the call's session has to learn it."""
    since_ms: int = 0


class LeaseEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one key; empty for an unknown key."""

    lease: Lease | None = None
    generation: int = 0
    """The number of published credentials. A release preserves it, so that no later credential has
    the number of an earlier one."""
    credential_published_at_millis: int | None = None
    released: ReleasedLease | None = None
    """Present until the next credential is published."""
    sealed_as: int = 0
    """The generation under which the realm's secrets have the present credential; 0: they have
    none."""
    sealed_before: int = 0
    """The same of the credential before, which nodes that lag behind may still read."""
    published_before_millis: int | None = None
    """When the credential before was published."""
    dropped: tuple[int, ...] = ()
    """Generations that the secrets need no longer have; the last few."""
    acquiring: bool = False
    """The provider is asked for a credential, although there is none to refresh."""
    acquisitions_failed: int = 0
    """Since the last credential; the machine counts failed refreshes."""
    may_be_lost: bool = False
    """The refresh token of the sealed credential may be used up."""
    again: bool = False
    """An operator lets the attempt that has begun use it nevertheless."""
    intended_by: str = ""
    """The process that has asked the provider last, or is about to; empty before."""
    rejected: int = 0
    """The last generation that a server refused although it was fresh by its time."""
    reason: str = ""
    """Why there is no newer credential."""
    retry_at_ms: int = 0
    """When a timer begins the next attempt; 0 without a timer."""
    not_before_ms: int = 0
    """When the attempt that has begun may ask the provider, by the clock of the lease's owner."""
    waiting: Map[str, WaitingCall] = Map()
    """By operation: the calls that wait for a fresh credential."""


class LoginFlowsReleased(TransitionEffect, frozen=True, kw_only=True):
    """A release ended these logins."""

    flow_ids: tuple[str, ...]


# --- asking -------------------------------------------------------------------------------------


def decide_input(
    entry: LeaseEntry,
    key: LeaseKey,
    on: str,
    params: Mapping[str, Any],
    *,
    outstanding_flows: int = 0,
    edition: Edition = Edition.HEAD,
) -> facts.LeaseFact:
    """The fact of an input of auth_lease, or a rejection.

    ``outstanding_flows`` counts the logins of all keys: their limit is checked before the lease
    checks its own. In the seed's edition every refusal is NoMatchingTransition.
    """
    draft = LEASE.candidate(
        on, {name: _known_expiry(name, value) for name, value in params.items()}
    )
    if on == "release":
        return release_lease(entry)
    _check_registered(entry, key, on)
    if on in _ADMISSIONS and outstanding_flows >= draft.max_outstanding_flows:
        kind = RejectionKind.GUARD_REJECTED if edition is Edition.HEAD else _UNMATCHED
        limit = draft.max_outstanding_flows
        reason = f"{outstanding_flows} logins are active, the limit is {limit}"
        raise TransitionRejected(_context(on), reason, kind)
    lease = _open(entry, for_login=on in _ADMISSIONS)
    try:
        fact: facts.LeaseFact = LEASE.decide(lease, on, draft, edition=edition)
    except TransitionRejected as rejected:
        if edition is Edition.HEAD:
            raise
        raise TransitionRejected(rejected.context, rejected.reason) from None
    return fact


def refresh_failed(
    entry: LeaseEntry, key: LeaseKey, *, permanent: bool, edition: Edition = Edition.HEAD
) -> facts.LeaseFact:
    """The refresh failed, permanently or until the next try."""
    on = "refresh_failed_permanent" if permanent else "refresh_failed_transient"
    try:
        return decide_input(entry, key, on, {}, edition=edition)
    except TransitionRejected as rejected:
        context = _context("refresh_failed")
        raise TransitionRejected(context, rejected.reason, rejected.kind) from None


def release_lease(entry: LeaseEntry) -> facts.Released:
    """Release the lease. Valid for every key, also an unknown one."""
    lease = entry.lease or Lease()
    draft = facts.Released(flow_ids=tuple(sorted({*lease.browser_flows, *lease.device_flows})))
    fact: facts.Released = LEASE.decide(lease, "release", draft)
    return fact


def release_credential_lifecycle(entry: LeaseEntry) -> facts.LeaseFact:
    """Release the credential, and the lease too unless it has active logins."""
    lease = entry.lease
    if lease is None or not lease.outstanding_flows:
        return release_lease(entry)
    fact: facts.LeaseFact = LEASE.decide(
        lease, "clear_credential_lifecycle", facts.CredentialCleared()
    )
    return fact


def undo_release(entry: LeaseEntry) -> facts.ReleaseUndone | None:
    """Undo the last release; ``None`` if a newer credential was published."""
    return facts.ReleaseUndone() if entry.released is not None else None


def restore_snapshot(
    entry: LeaseEntry,
    key: LeaseKey,
    snapshot: AuthLeaseSnapshot,
    expires_at: int | None,
    *,
    edition: Edition = Edition.HEAD,
) -> list[facts.LeaseFact]:
    """The facts of the inputs that lead to the snapshot. They publish the sealed credential again,
    as the next generation. Nothing follows from a snapshot without a credential or its expiry."""
    if not _holds_credential(snapshot) or expires_at is None:
        return []
    replayed: list[facts.LeaseFact] = []
    for on, params in (
        ("acquire_lease", {"expires_at_ts": expires_at}),
        *_inputs_to(snapshot.phase, expires_at),
    ):
        fact = decide_input(entry, key, on, params, edition=edition)
        if isinstance(fact, facts.Acquired):
            force_setattr(fact, "sealed_as", entry.sealed_as)
        replayed.append(fact)
        entry = evolve(entry, fact)
    return replayed


# --- folding ------------------------------------------------------------------------------------


def evolve(entry: LeaseEntry, fact: facts.LeaseFact) -> LeaseEntry:
    if (fold := _FOLDS.get(type(fact))) is not None:
        return fold(entry, fact)
    lease = LEASE.evolve(_open(entry, for_login=isinstance(fact, _ADMITTED)), fact)
    after, fold_row = replace(entry, lease=lease), _ROW_FOLDS.get(type(fact))
    return after if fold_row is None else fold_row(after, fact)


def effects(entry: LeaseEntry, fact: facts.LeaseFact) -> tuple[TransitionEffect, ...]:
    """The effects of ``fact``; ``entry`` is the state after it."""
    if isinstance(fact, facts.Released):
        of_lease = LEASE.effects(LEASE.evolve(Lease(), fact), fact)
        flows = LoginFlowsReleased(flow_ids=fact.flow_ids)
        return (*of_lease, flows) if fact.flow_ids else of_lease
    return () if type(fact) in _FOLDS else LEASE.effects(entry.lease or Lease(), fact)


# --- views --------------------------------------------------------------------------------------


def lease_snapshot(entry: LeaseEntry) -> AuthLeaseSnapshot:
    """A snapshot of the lease."""
    lease = entry.lease
    if lease is None:
        return AuthLeaseSnapshot(generation=entry.generation)
    present = lease.credential_present
    return AuthLeaseSnapshot(
        phase=lease.phase,
        expires_at=lease.expires_at,
        credential_present=present,
        generation=entry.generation,
        credential_published_at_millis=entry.credential_published_at_millis if present else None,
    )


# --- helpers ------------------------------------------------------------------------------------


def _context(on: str) -> str:
    return f"{LEASE.handle}::{on}"


def _known_expiry(name: str, value: Any) -> Any:
    """The largest number means never."""
    return None if name in _EXPIRY and value == U64_MAX else value


def _check_registered(entry: LeaseEntry, key: LeaseKey, on: str) -> None:
    if on == "acquire_lease" or on in _ADMISSIONS:
        return
    if entry.lease is None or (on in _OF_CREDENTIAL and not entry.generation):
        raise TransitionRejected(_context(on), f"no auth lease registered for lease_key `{key}`")


def _open(entry: LeaseEntry, *, for_login: bool) -> Lease:
    """The lease, or a new one; a login opens one without a credential."""
    if entry.lease is not None:
        return entry.lease
    return Lease(phase=AuthLeasePhase.REAUTH_REQUIRED) if for_login else Lease()


def _publish(entry: LeaseEntry, fact: facts.Acquired | facts.RefreshCompleted) -> LeaseEntry:
    """A new credential: the calls that wait have to learn of it, unless it has expired since it
    was sealed."""
    expires_at = None if entry.lease is None else entry.lease.expires_at
    is_fresh = expires_at is None or expires_at * 1_000 > fact.at_ms
    calls = {name: replace(call, is_fresh=is_fresh) for name, call in entry.waiting.items()}
    is_other = fact.sealed_as != entry.sealed_as
    dropped = (*entry.dropped, entry.sealed_before) if is_other else entry.dropped
    former_ms = entry.credential_published_at_millis
    before_ms = former_ms if is_other else entry.published_before_millis
    return LeaseEntry(
        lease=entry.lease,
        generation=saturate(entry.generation + 1),
        credential_published_at_millis=fact.at_ms,
        sealed_as=fact.sealed_as,
        sealed_before=entry.sealed_as if is_other else entry.sealed_before,
        published_before_millis=before_ms,
        may_be_lost=entry.may_be_lost and not is_other,
        dropped=_last_sealed(dropped),
        rejected=entry.rejected,
        waiting=Map(calls),
    )


def _drop_sealed(entry: LeaseEntry) -> LeaseEntry:
    dropped = (*entry.dropped, entry.sealed_before, entry.sealed_as)
    return replace(entry, sealed_as=0, sealed_before=0, dropped=_last_sealed(dropped))


def _last_sealed(generations: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(one for one in generations if one)[-_DROPPED_MAX:]


def _end_attempt(entry: LeaseEntry, fact: facts.LeaseFact) -> LeaseEntry:
    return replace(
        entry,
        acquiring=False,
        acquisitions_failed=entry.acquisitions_failed + isinstance(fact, facts.AcquisitionFailed),
        may_be_lost=entry.may_be_lost or getattr(fact, "may_be_lost", False) is True,
        again=False,
        intended_by="",
        reason=getattr(fact, "reason", ""),
        retry_at_ms=getattr(fact, "retry_at_ms", 0),
    )


def _begin_attempt(
    entry: LeaseEntry, fact: facts.AcquisitionBegun | facts.RefreshBegun
) -> LeaseEntry:
    return replace(
        entry,
        acquiring=isinstance(fact, facts.AcquisitionBegun),
        intended_by="",
        retry_at_ms=0,
        not_before_ms=fact.not_before_ms or 0,
        again=fact.again is True,
    )


def _intend(entry: LeaseEntry, fact: facts.RefreshIntended) -> LeaseEntry:
    return replace(entry, intended_by=fact.node)


def _reject(entry: LeaseEntry, _: facts.CredentialRejected) -> LeaseEntry:
    return replace(entry, rejected=entry.generation)


def _clear(entry: LeaseEntry, fact: facts.CredentialCleared) -> LeaseEntry:
    return _drop_sealed(_end_attempt(entry, fact))


def _begin_wait(entry: LeaseEntry, fact: facts.WaitBegun) -> LeaseEntry:
    call = WaitingCall(fact.call_session, fact.is_fresh is True, fact.at_ms)
    return replace(entry, waiting=entry.waiting.set(fact.operation_id, call))


def _end_waits(entry: LeaseEntry, fact: facts.WaitsEnded) -> LeaseEntry:
    waiting = entry.waiting
    for operation_id in fact.operation_ids:
        if operation_id in waiting:
            waiting = waiting.delete(operation_id)
    return replace(entry, waiting=waiting)


def _release(entry: LeaseEntry, _: facts.Released) -> LeaseEntry:
    taken = None
    if entry.lease is not None:
        taken = ReleasedLease(
            lease=entry.lease, credential_published_at_millis=entry.credential_published_at_millis
        )
    return LeaseEntry(
        generation=entry.generation,
        released=taken,
        dropped=_drop_sealed(entry).dropped,
        rejected=entry.rejected,
        waiting=entry.waiting,
    )


def _undo_release(entry: LeaseEntry, _: facts.ReleaseUndone) -> LeaseEntry:
    if entry.released is None:
        return entry
    return LeaseEntry(
        lease=entry.released.lease,
        generation=entry.generation,
        credential_published_at_millis=entry.released.credential_published_at_millis,
        waiting=entry.waiting,
    )


def _holds_credential(snapshot: AuthLeaseSnapshot) -> bool:
    gone = snapshot.phase in (None, AuthLeasePhase.RELEASED)
    return snapshot.credential_present and not gone


def _restore(entry: LeaseEntry, fact: facts.Restored) -> LeaseEntry:
    """Active logins stay: they lead to a newer credential either way."""
    snapshot, lease = fact.snapshot, entry.lease or Lease()
    newest = max(entry.generation, snapshot.generation)
    if snapshot.phase is not None and _holds_credential(snapshot):
        lease = replace(
            lease,
            phase=snapshot.phase,
            expires_at=fact.expires_at,
            last_refresh=None,
            refresh_attempt=0,
            credential_present=True,
        )
        published = snapshot.credential_published_at_millis
        return LeaseEntry(lease=lease, generation=newest, credential_published_at_millis=published)
    if lease.outstanding_flows:
        return LeaseEntry(lease=clear(lease, fact), generation=newest)
    return LeaseEntry(generation=snapshot.generation)


_FOLDS: Final[Mapping[type, Callable[[LeaseEntry, Any], LeaseEntry]]] = {
    facts.Restored: _restore,
    facts.ReleaseUndone: _undo_release,
    facts.Released: _release,
    facts.AcquisitionBegun: _begin_attempt,
    facts.AcquisitionFailed: _end_attempt,
    facts.RefreshIntended: _intend,
    facts.CredentialRejected: _reject,
    facts.WaitBegun: _begin_wait,
    facts.WaitsEnded: _end_waits,
}
"""Of facts that are no rows of the machine, or that end its state."""
_ROW_FOLDS: Final[Mapping[type, Callable[[LeaseEntry, Any], LeaseEntry]]] = {
    facts.Acquired: _publish,
    facts.RefreshCompleted: _publish,
    facts.RefreshBegun: _begin_attempt,
    facts.RefreshFailedTransient: _end_attempt,
    facts.RefreshFailedPermanent: _end_attempt,
    facts.ReauthRequired: _end_attempt,
    facts.CredentialCleared: _clear,
}
"""What a row changes beside the machine's state."""


def _inputs_to(
    phase: AuthLeasePhase | None, expires_at: int
) -> tuple[tuple[str, dict[str, int]], ...]:
    """The inputs from a newly acquired credential to ``phase``."""
    match phase:
        case AuthLeasePhase.EXPIRING:
            return (("mark_expiring", {}),)
        case AuthLeasePhase.REFRESHING:
            return (("begin_refresh", {}),)
        case AuthLeasePhase.REAUTH_REQUIRED:
            return (("mark_reauth_required", {}),)
        case AuthLeasePhase.EXPIRED:
            seen = {"now_ts": expires_at, "refresh_window_secs": REFRESH_WINDOW_SECS}
            return (("observe_credential_freshness", seen),)
    return ()
