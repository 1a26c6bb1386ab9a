"""What callers may do with a lease key, whether or not there is a lease behind it.

The machine knows one lease; here is what goes on around it: keys nobody has heard of, how often a
credential was published and when, what a release forgets and what it keeps, and snapshots that are
put back. One entry a key, pure: who stores entries, tells observers and counts logins over all
keys is the actor's business. Publication time is the fact's ``at_ms``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from rookery.actors.kernel.machines.machine import (
    Edition,
    RejectionKind,
    TransitionEffect,
    TransitionRejected,
)
from rookery.actors.leases.lease_machine import LEASE, clear
from rookery.actors.leases.state import Lease
from rookery.actors.leases.status import REFRESH_WINDOW_SECS
from rookery.schemas.facts import lease as facts
from rookery.schemas.integers import U64_MAX, saturate
from rookery.schemas.machines.lease import (
    AuthLeasePhase,
    AuthLeaseSnapshot,
    AuthLeaseTransition,
    LeaseKey,
)

__all__ = [
    "LeaseEntry",
    "LoginFlowsReleased",
    "ReleasedLease",
    "decide_input",
    "effects",
    "evolve",
    "lease_snapshot",
    "lease_transition",
    "refresh_failed",
    "release_credential_lifecycle",
    "release_lease",
    "replay_snapshot",
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
"""These need a credential that was published; a lease that only waits for a login has none."""
_PUBLISHED: Final = (facts.Acquired, facts.RefreshCompleted)
_ADMITTED: Final = (facts.BrowserFlowAdmitted, facts.DeviceFlowAdmitted)
_UNMATCHED: Final = RejectionKind.NO_MATCHING_TRANSITION
_EXPIRY: Final = ("expires_at_ts", "new_expires_at")


class ReleasedLease(msgspec.Struct, frozen=True, kw_only=True):
    """What a release took away, should it have to be undone."""

    lease: Lease
    credential_published_at_millis: int | None = None


class LeaseEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Everything there is to a key; the empty entry is a key nobody has heard of."""

    lease: Lease | None = None
    generation: int = 0
    """How many credentials were published. A release keeps it, so that the next credential cannot
    be taken for the one before."""
    credential_published_at_millis: int | None = None
    released: ReleasedLease | None = None
    """Until another credential is published."""


class LoginFlowsReleased(TransitionEffect, frozen=True, kw_only=True):
    """Whoever waits for these logins is to be told that they are over."""

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

    ``outstanding_flows`` are those of all keys together: the limit is checked against them before
    the lease checks its own. In the seed's edition every refusal is NoMatchingTransition.
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
        reason = f"{outstanding_flows} logins are under way, the limit is {limit}"
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
    """The refresh under way came to nothing: for good, or until it is tried again."""
    on = "refresh_failed_permanent" if permanent else "refresh_failed_transient"
    try:
        return decide_input(entry, key, on, {}, edition=edition)
    except TransitionRejected as rejected:
        context = _context("refresh_failed")
        raise TransitionRejected(context, rejected.reason, rejected.kind) from None


def release_lease(entry: LeaseEntry) -> facts.Released:
    """Give the lease back. Never refused, not even for a key nobody has heard of."""
    lease = entry.lease or Lease()
    draft = facts.Released(flow_ids=tuple(sorted({*lease.browser_flows, *lease.device_flows})))
    fact: facts.Released = LEASE.decide(lease, "release", draft)
    return fact


def release_credential_lifecycle(entry: LeaseEntry) -> facts.LeaseFact:
    """Give the credential back, and the lease too unless logins are under way for it."""
    lease = entry.lease
    if lease is None or not lease.outstanding_flows:
        return release_lease(entry)
    fact: facts.LeaseFact = LEASE.decide(
        lease, "clear_credential_lifecycle", facts.CredentialCleared()
    )
    return fact


def undo_release(entry: LeaseEntry) -> facts.ReleaseUndone | None:
    """Put back what the last release took away; ``None`` if a newer credential is there."""
    return facts.ReleaseUndone() if entry.released is not None else None


def restore_snapshot(snapshot: AuthLeaseSnapshot, expires_at: int | None) -> facts.Restored | None:
    """Put the lease where ``lease_snapshot`` says it was; ``None`` if there is nothing to do."""
    if _holds_credential(snapshot) and expires_at is None:
        return None
    return facts.Restored(snapshot=snapshot, expires_at=_known_expiry("expires_at_ts", expires_at))


def replay_snapshot(
    entry: LeaseEntry,
    key: LeaseKey,
    snapshot: AuthLeaseSnapshot,
    expires_at: int | None,
    *,
    edition: Edition = Edition.HEAD,
) -> list[facts.LeaseFact]:
    """The way there by inputs alone, for whoever cannot write a phase: it publishes again."""
    if not _holds_credential(snapshot) or expires_at is None:
        return []
    told: list[facts.LeaseFact] = []
    for on, params in (
        ("acquire_lease", {"expires_at_ts": expires_at}),
        *_inputs_to(snapshot.phase, expires_at),
    ):
        fact = decide_input(entry, key, on, params, edition=edition)
        told.append(fact)
        entry = evolve(entry, fact)
    return told


# --- folding ------------------------------------------------------------------------------------


def evolve(entry: LeaseEntry, fact: facts.LeaseFact) -> LeaseEntry:
    """The entry after ``fact``."""
    match fact:
        case facts.Restored():
            return _restore(entry, fact)
        case facts.ReleaseUndone():
            return _undo_release(entry)
        case facts.Released():
            return _release(entry)
    lease = LEASE.evolve(_open(entry, for_login=isinstance(fact, _ADMITTED)), fact)
    if not isinstance(fact, _PUBLISHED):
        return replace(entry, lease=lease)
    return LeaseEntry(
        lease=lease,
        generation=saturate(entry.generation + 1),
        credential_published_at_millis=fact.at_ms,
    )


def effects(entry: LeaseEntry, fact: facts.LeaseFact) -> tuple[TransitionEffect, ...]:
    """What ``fact`` asks of the world; ``entry`` is the one after it."""
    match fact:
        case facts.Restored() | facts.ReleaseUndone():
            return ()
        case facts.Released():
            told = LEASE.effects(LEASE.evolve(Lease(), fact), fact)
            flows = LoginFlowsReleased(flow_ids=fact.flow_ids)
            return (*told, flows) if fact.flow_ids else told
    return LEASE.effects(entry.lease or Lease(), fact)


# --- looking ------------------------------------------------------------------------------------


def lease_snapshot(entry: LeaseEntry) -> AuthLeaseSnapshot:
    """The lease as it stands."""
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


def lease_transition(entry: LeaseEntry) -> AuthLeaseTransition:
    """What publishing a credential answers."""
    return AuthLeaseTransition(entry.generation, entry.credential_published_at_millis)


# --- in detail ----------------------------------------------------------------------------------


def _context(on: str) -> str:
    return f"{LEASE.handle}::{on}"


def _known_expiry(name: str, value: Any) -> Any:
    """The largest number there is means never."""
    return None if name in _EXPIRY and value == U64_MAX else value


def _check_registered(entry: LeaseEntry, key: LeaseKey, on: str) -> None:
    if on == "acquire_lease" or on in _ADMISSIONS:
        return
    if entry.lease is None or (on in _OF_CREDENTIAL and not entry.generation):
        raise TransitionRejected(_context(on), f"no auth lease registered for lease_key `{key}`")


def _open(entry: LeaseEntry, *, for_login: bool) -> Lease:
    """The lease, or a new one; a login opens one that has no credential yet."""
    if entry.lease is not None:
        return entry.lease
    return Lease(phase=AuthLeasePhase.REAUTH_REQUIRED) if for_login else Lease()


def _release(entry: LeaseEntry) -> LeaseEntry:
    taken = None
    if entry.lease is not None:
        taken = ReleasedLease(
            lease=entry.lease, credential_published_at_millis=entry.credential_published_at_millis
        )
    return LeaseEntry(generation=entry.generation, released=taken)


def _undo_release(entry: LeaseEntry) -> LeaseEntry:
    if entry.released is None:
        return entry
    return LeaseEntry(
        lease=entry.released.lease,
        generation=entry.generation,
        credential_published_at_millis=entry.released.credential_published_at_millis,
    )


def _holds_credential(snapshot: AuthLeaseSnapshot) -> bool:
    gone = snapshot.phase in (None, AuthLeasePhase.RELEASED)
    return snapshot.credential_present and not gone


def _restore(entry: LeaseEntry, fact: facts.Restored) -> LeaseEntry:
    """Logins under way are kept: they lead to a newer credential either way."""
    said, lease = fact.snapshot, entry.lease or Lease()
    newest = max(entry.generation, said.generation)
    if said.phase is not None and _holds_credential(said):
        lease = replace(
            lease,
            phase=said.phase,
            expires_at=fact.expires_at,
            last_refresh=None,
            refresh_attempt=0,
            credential_present=True,
        )
        published = said.credential_published_at_millis
        return LeaseEntry(lease=lease, generation=newest, credential_published_at_millis=published)
    if lease.outstanding_flows:
        return LeaseEntry(lease=clear(lease, fact), generation=newest)
    return LeaseEntry(generation=said.generation)


def _inputs_to(
    phase: AuthLeasePhase | None, expires_at: int
) -> tuple[tuple[str, dict[str, int]], ...]:
    """The inputs from a credential just acquired to ``phase``."""
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
