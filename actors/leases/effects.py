"""The effects of leases, and which follow from a fact. Pure.

They depend on the state of the lease, which after a crash is later than the fact: work that is done
is not repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rookery.actors.kernel import Effect
from rookery.actors.leases.lease_rules import LeaseEntry
from rookery.actors.leases.refresh_rules import due_ms, is_in_work, next_sealed_as, requires_login
from rookery.schemas.envelope import Fact
from rookery.schemas.facts import lease as facts

__all__ = [
    "EFFECT_TYPES",
    "ArmLeaseTimer",
    "DropCredentials",
    "DropLogins",
    "EndWaits",
    "MoveWaits",
    "RefreshCredential",
    "lease_effects",
    "pending_lease_effects",
]


class RefreshCredential(Effect, frozen=True, kw_only=True):
    """Ask the provider for a newer credential, and seal it."""

    lease: str
    credential: int
    """The generation of the present credential."""
    sealed_as: int
    next_sealed_as: int
    not_before_ms: int = 0
    """When the provider may be asked."""


class ArmLeaseTimer(Effect, frozen=True, kw_only=True):
    """Let a timer begin the next refresh."""

    lease: str
    credential: int
    due_ms: int


class EndWaits(Effect, frozen=True, kw_only=True):
    """End the waits of calls, because the credential is fresh."""

    lease: str
    calls: tuple[tuple[str, str], ...]
    """Operation and session of each."""
    since_ms: tuple[int, ...]
    """When each began to wait."""


class MoveWaits(Effect, frozen=True, kw_only=True):
    """Let the runs of calls show that only a login helps."""

    lease: str
    calls: tuple[tuple[str, str], ...]
    """Operation and session of each."""


class DropCredentials(Effect, frozen=True, kw_only=True):
    """Delete sealed credentials that nothing uses."""

    lease: str
    generations: tuple[int, ...]


class DropLogins(Effect, frozen=True, kw_only=True):
    """Delete what completes logins that have ended."""

    lease: str
    flow_ids: tuple[str, ...]


EFFECT_TYPES: Final[frozenset[type[Fact]]] = frozenset(
    {
        facts.Acquired,
        facts.AcquisitionBegun,
        facts.AcquisitionFailed,
        facts.CredentialCleared,
        facts.ReauthRequired,
        facts.RefreshBegun,
        facts.RefreshCompleted,
        facts.RefreshFailedPermanent,
        facts.RefreshFailedTransient,
        facts.Released,
        facts.WaitBegun,
    }
)
"""The facts that ``lease_effects`` knows."""


def lease_effects(entry: LeaseEntry, fact: Fact) -> Sequence[Effect]:
    """The effects of ``fact``; ``entry`` is the state after it, or a later one."""
    lease, key = fact.session, fact.id
    found: list[Effect] = []
    match fact:
        case facts.RefreshBegun() | facts.AcquisitionBegun():
            found += _refresh(entry, lease)
        case facts.Acquired() | facts.RefreshCompleted():
            found += [
                *_end_waits(entry, lease, key, entry.waiting),
                *_timer(entry, lease, key, due_ms(entry, lease)),
                *_drop(entry, lease, key),
            ]
        case facts.RefreshFailedTransient():
            found += _timer(entry, lease, key, entry.retry_at_ms)
        case facts.AcquisitionFailed():
            found += _timer(entry, lease, key, entry.retry_at_ms)
            found += _move_waits(entry, lease, key, entry.waiting)
        case facts.RefreshFailedPermanent() | facts.ReauthRequired():
            found += _move_waits(entry, lease, key, entry.waiting)
        case facts.Released() | facts.CredentialCleared():
            found += (*_move_waits(entry, lease, key, entry.waiting), *_drop(entry, lease, key))
            if isinstance(fact, facts.Released) and fact.flow_ids:
                found.append(DropLogins(key=key, lease=lease, flow_ids=fact.flow_ids))
        case facts.WaitBegun(operation_id=operation_id):
            one = (operation_id,)
            found += _end_waits(entry, lease, key, one) if fact.is_fresh is True else ()
            found += _move_waits(entry, lease, key, one)
    return found


def pending_lease_effects(entry: LeaseEntry, lease: str) -> Sequence[Effect]:
    """The effects that the state alone calls for."""
    key = f"{lease}/{entry.generation}"
    return (*_refresh(entry, lease), *_end_waits(entry, lease, key, entry.waiting))


def _refresh(entry: LeaseEntry, lease: str) -> Iterable[Effect]:
    if is_in_work(entry, entry.generation):
        yield RefreshCredential(
            key=f"{lease}/{entry.generation}",
            lease=lease,
            credential=entry.generation,
            sealed_as=entry.sealed_as,
            next_sealed_as=next_sealed_as(entry),
            not_before_ms=entry.not_before_ms,
        )


def _timer(entry: LeaseEntry, lease: str, key: str, at_ms: int) -> Iterable[Effect]:
    if at_ms:
        yield ArmLeaseTimer(key=key, lease=lease, credential=entry.generation, due_ms=at_ms)


def _end_waits(
    entry: LeaseEntry, lease: str, key: str, operation_ids: Iterable[str]
) -> Iterable[Effect]:
    known = ((name, entry.waiting.get(name)) for name in operation_ids)
    fresh = [(name, call) for name, call in known if call and call.is_fresh]
    if fresh:
        yield EndWaits(
            key=key,
            lease=lease,
            calls=tuple((name, call.session) for name, call in fresh),
            since_ms=tuple(call.since_ms for _, call in fresh),
        )


def _move_waits(
    entry: LeaseEntry, lease: str, key: str, operation_ids: Iterable[str]
) -> Iterable[Effect]:
    calls = tuple(
        (name, entry.waiting[name].session) for name in operation_ids if name in entry.waiting
    )
    if calls and requires_login(entry):
        yield MoveWaits(key=key, lease=lease, calls=calls)


def _drop(entry: LeaseEntry, lease: str, key: str) -> Iterable[Effect]:
    if entry.dropped:
        yield DropCredentials(key=key, lease=lease, generations=entry.dropped)
