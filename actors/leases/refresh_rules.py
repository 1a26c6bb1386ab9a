"""Rules for the work of a lease's owner: when a credential is renewed, and for whom. Pure.

A refresh is a chain of facts: it begins, the provider is about to be asked, and it ends. The owner
asks the provider only after the second fact, and seals the new credential before the third. So a
later owner knows whether the provider may have been asked, and finds the credential if it was
sealed. If it was not, and the answer may be lost with a refresh token, only a login helps: a token
is never used twice in silence.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final

import msgspec
from msgspec import UNSET
from msgspec.structs import force_setattr

from rookery.actors.kernel import FactBuilder
from rookery.actors.kernel.machines import RejectionKind, TransitionRejected
from rookery.actors.leases.lease_rules import LeaseEntry, decide_input, evolve
from rookery.actors.leases.state import REFRESH_WINDOW_SECS
from rookery.schemas.calls import LEASE_REAUTH_REQUIRED, WAITING_FOR_LEASE
from rookery.schemas.commands import LeaseWait
from rookery.schemas.facts import lease as facts
from rookery.schemas.machines.lease import AuthLeasePhase, LeaseKey

__all__ = [
    "BeginFlow",
    "EndFlow",
    "EndedWaits",
    "IntendRefresh",
    "LeaseStatus",
    "LeaseStatusQuery",
    "RefreshEnded",
    "begin_attempt",
    "begin_flow",
    "due_ms",
    "end_attempt",
    "end_flow",
    "end_waits",
    "flow_name",
    "intend_attempt",
    "is_in_work",
    "is_usable",
    "lease_status",
    "next_sealed_as",
    "on_due",
    "on_rejected",
    "on_wait",
    "request_attempt",
    "requires_login",
    "secret_name",
    "short_name",
    "wait_code",
]

RETRY_MS_MIN: Final = 1_000
RETRY_MS_MAX: Final = 60_000
RETRY_ASKED_MS_MAX: Final = 3_600_000
"""Servers may ask for more time than ``RETRY_MS_MAX``, but not for more than this."""
REASON_MAX: Final = 300
EARLY_MS: Final = 250
"""By how much the clocks of a node and its server differ at least, where one is wrong."""
FLOWS_MAX: Final = 100
"""Logins in progress, of all leases that this node owns."""
REJECTED_AGAIN_MS: Final = 60_000
"""A credential that a server refuses so soon after the refresh that a refusal caused is refused for
another reason than its age."""
VALID, EXPIRING, REFRESHING, REAUTH_REQUIRED, RELEASED, EXPIRED = AuthLeasePhase


class IntendRefresh(msgspec.Struct, frozen=True, kw_only=True):
    """Ask whether the provider may be asked now, and record it."""

    credential: int
    """The generation of the credential to renew."""
    repeatable: bool
    """Whether an answer of the provider that is lost does no harm."""


class RefreshEnded(msgspec.Struct, frozen=True, kw_only=True):
    """Record the end of a refresh: a sealed credential, or the reason why there is none."""

    credential: int
    """The generation of the credential to renew."""
    sealed_as: int = 0
    expires_at: int | None = None
    """Of the new credential."""
    reason: str = ""
    permanent: bool = False
    may_be_lost: bool = False
    """Whether the refresh token may be used up."""
    retry_after_ms: int = 0


class BeginFlow(msgspec.Struct, frozen=True, kw_only=True):
    """Record a login that has begun."""

    flow_id: str
    provider: str
    redirect_uri: str
    """Of a login by browser; empty for one by device code."""
    expires_at_millis: int


class EndFlow(msgspec.Struct, frozen=True, kw_only=True):
    """Record the end of a login, with the credential if there is one."""

    flow_id: str
    redirect_uri: str
    sealed_as: int = 0
    expires_at: int | None = None


class EndedWaits(msgspec.Struct, frozen=True):
    """Record that these calls wait no more: their sessions get durable commands that say it."""

    operation_ids: tuple[str, ...]


class LeaseStatusQuery(msgspec.Struct, frozen=True):
    """Ask for the status, before a credential is sealed."""


class LeaseStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to the executor's commands."""

    may_ask: bool = False
    """Whether this process may ask the provider now."""
    next_sealed_as: int = 0
    """The generation under which the next credential is sealed."""
    is_sealed_for_nothing: bool = False
    """Whether the credential of a reported refresh was not published: a login came first."""


# --- the present credential ---------------------------------------------------------------------


def is_usable(entry: LeaseEntry, now_ms: int) -> bool:
    """Whether calls may use the credential: it is present, sealed, not refused, and expires after
    the window in which it is refreshed."""
    lease = entry.lease
    if lease is None or not lease.credential_present or not entry.sealed_as:
        return False
    if entry.rejected == entry.generation or lease.phase not in (VALID, EXPIRING, REFRESHING):
        return False
    return lease.expires_at is None or lease.expires_at * 1_000 - now_ms > _window_ms(entry)


def requires_login(entry: LeaseEntry) -> bool:
    """Whether only a person leads to a credential."""
    if entry.acquiring or entry.retry_at_ms:
        return False
    if entry.lease is None:
        return bool(entry.generation or entry.reason)
    return entry.lease.phase in (REAUTH_REQUIRED, RELEASED) or not entry.lease.credential_present


def wait_code(entry: LeaseEntry, now_ms: int) -> str:
    """The code of what a call waits for; empty if the credential is usable."""
    if is_usable(entry, now_ms):
        return ""
    return LEASE_REAUTH_REQUIRED if requires_login(entry) else WAITING_FOR_LEASE


def is_current(entry: LeaseEntry, credential: int) -> bool:
    """Whether calls get the credential of this generation, which no server has refused."""
    return entry.generation == credential != entry.rejected and not requires_login(entry)


def is_in_work(entry: LeaseEntry, credential: int) -> bool:
    """Whether the owner is to renew the credential of this generation."""
    is_refreshing = entry.lease is not None and entry.lease.phase is REFRESHING
    return entry.generation == credential and (entry.acquiring or is_refreshing)


def lease_status(entry: LeaseEntry, command: Any, left: Sequence[Any], epoch: str) -> LeaseStatus:
    """The reply to a command of the executor, which left these facts."""
    may_ask = is_for_nothing = False
    match command:
        case IntendRefresh(credential=credential):
            is_ours = bool(left) and entry.intended_by == epoch
            may_ask = is_ours and is_in_work(entry, credential)
        case RefreshEnded(sealed_as=sealed_as) if sealed_as and not left:
            is_for_nothing = sealed_as not in (entry.sealed_as, entry.sealed_before)
    return LeaseStatus(
        may_ask=may_ask,
        next_sealed_as=next_sealed_as(entry),
        is_sealed_for_nothing=is_for_nothing,
    )


def next_sealed_as(entry: LeaseEntry) -> int:
    """The generation under which the next credential is sealed."""
    return max(entry.generation, entry.sealed_as) + 1


def due_ms(entry: LeaseEntry, key: str) -> int:
    """When a timer begins the refresh of the present credential; 0 if it never expires. Leases that
    expire together are refreshed one after the other: each has its own part of the window."""
    lease = entry.lease
    if lease is None or lease.expires_at is None or not lease.credential_present:
        return 0
    window_ms = _window_ms(entry)
    spread_ms = min(window_ms, _lifetime_ms(entry) // 4) if window_ms else 0
    return max(1, lease.expires_at * 1_000 - window_ms - int(spread_ms * _fraction(key)))


def secret_name(lease: str) -> str:
    """The name of a lease's credentials among the realm's secrets."""
    return f"lease/{lease}"


def flow_name(lease: str, flow_id: str) -> str:
    """The name of what completes a login."""
    return f"lease/{lease}/login/{flow_id}"


def short_name(text: str) -> str:
    """A name for timers, whose ids are short; keys of leases may be long."""
    return sha256(text.encode()).hexdigest()[:16]


def _lifetime_ms(entry: LeaseEntry) -> int:
    lease, published_ms = entry.lease, entry.credential_published_at_millis
    if lease is None or lease.expires_at is None or published_ms is None:
        return 4 * REFRESH_WINDOW_SECS * 1_000
    return max(0, lease.expires_at * 1_000 - published_ms)


def _window_ms(entry: LeaseEntry) -> int:
    """How long before its expiry the credential is refreshed: half of its life if that is short."""
    return min(REFRESH_WINDOW_SECS * 1_000, _lifetime_ms(entry) // 2)


def _fraction(key: str) -> float:
    return sha256(key.encode()).digest()[0] / 256


# --- a refresh ----------------------------------------------------------------------------------


def request_attempt(entry: LeaseEntry, key: LeaseKey, *, again: bool) -> Sequence[facts.LeaseFact]:
    """Begin to renew the credential for an operator. ``again``: also with a refresh token that may
    be used up."""
    if entry.may_be_lost and not again and not is_in_work(entry, entry.generation):
        raise TransitionRejected(
            "request_credential",
            f"the refresh token of {key} may be used up, and some servers end every session of an "
            "account that uses one twice",
            RejectionKind.GUARD_REJECTED,
            hint=f"rookery leases login {key}; or rookery leases refresh {key} --again",
        )
    begun = begin_attempt(entry, key, requested=True)
    return _marked(begun, again=True) if entry.may_be_lost else begun


def begin_attempt(
    entry: LeaseEntry, key: LeaseKey, *, requested: bool = False
) -> Sequence[facts.LeaseFact]:
    """Begin to renew the credential, unless that is in progress. ``requested``: by an operator, who
    may begin it also where only a login is expected to help."""
    lease = entry.lease
    if is_in_work(entry, entry.generation):
        return ()
    if lease is None or lease.phase is REAUTH_REQUIRED or not lease.credential_present:
        if requires_login(entry) and not requested:
            return ()
        return (facts.AcquisitionBegun(),)
    builder = _Facts(entry)
    if lease.phase is VALID:
        builder.add(decide_input(entry, key, "mark_expiring", {}))
    builder.add(decide_input(builder.state, key, "begin_refresh", {}))
    return builder.facts


def on_due(entry: LeaseEntry, key: LeaseKey, *, now_ms: int) -> Sequence[facts.LeaseFact]:
    """The timer of the present credential, or of the next attempt. The server fires it by its own
    clock: where that of this node is far behind, a new credential would be due again at once, so
    that calls begin its refresh instead; and the next attempt waits by the clock of this node."""
    published_ms = entry.credential_published_at_millis or 0
    is_new = 0 <= now_ms - published_ms < _lifetime_ms(entry) // 4
    if is_new and not entry.retry_at_ms and is_usable(entry, now_ms):
        return ()
    begun = begin_attempt(entry, key)
    is_early = entry.retry_at_ms - now_ms > EARLY_MS
    return _marked(begun, not_before_ms=entry.retry_at_ms) if is_early else begun


def _marked(begun: Sequence[facts.LeaseFact], **fields: int) -> Sequence[facts.LeaseFact]:
    """The facts of an attempt that begins, with more fields."""
    for fact in begun:
        if isinstance(fact, facts.RefreshBegun | facts.AcquisitionBegun):
            for name, value in fields.items():
                force_setattr(fact, name, value)
    return begun


def intend_attempt(
    entry: LeaseEntry, key: LeaseKey, intent: IntendRefresh, *, epoch: str, now_ms: int
) -> Sequence[facts.LeaseFact]:
    """Record that the provider is about to be asked. If a process that asked it before has lost the
    answer, that is done again only if it does no harm, or an operator lets it be done."""
    if not is_in_work(entry, intent.credential):
        return ()
    may_be_lost = entry.intended_by or (entry.may_be_lost and not entry.again)
    if may_be_lost and not intent.repeatable:
        lost = RefreshEnded(
            credential=intent.credential,
            permanent=True,
            may_be_lost=True,
            reason="the answer to an earlier refresh may be lost, and with it a refresh token",
        )
        return end_attempt(entry, key, lost, now_ms=now_ms)
    return (facts.RefreshIntended(node=epoch),)


def end_attempt(
    entry: LeaseEntry, key: LeaseKey, ended: RefreshEnded, *, now_ms: int
) -> Sequence[facts.LeaseFact]:
    """The end of the attempt that is in progress."""
    if not is_in_work(entry, ended.credential):
        return ()
    fields: dict[str, Any] = {}
    if ended.sealed_as:
        on, params = _publication(entry, ended, now_ms)
        fields["sealed_as"] = ended.sealed_as
    else:
        retry_at_ms = 0 if ended.permanent else now_ms + _retry_ms(entry, key, ended)
        fields["reason"] = ended.reason[:REASON_MAX]
        if ended.may_be_lost:
            fields["may_be_lost"] = True
        if not ended.permanent:
            fields["retry_at_ms"] = retry_at_ms
        if entry.acquiring:
            failed = {"retry_at_ms": 0, **fields}
            return (facts.AcquisitionFailed(**failed),)
        on = "refresh_failed_permanent" if ended.permanent else "refresh_failed_transient"
        params = {}
    fact = decide_input(entry, key, on, params)
    for name, value in fields.items():
        force_setattr(fact, name, value)
    return (fact,)


def _publication(
    entry: LeaseEntry, ended: RefreshEnded, now_ms: int
) -> tuple[str, dict[str, int | None]]:
    """The input that publishes a sealed credential. A refresh does not end with one that has
    expired; what an earlier owner sealed may have, and can be refreshed in its turn."""
    now_s = now_ms // 1_000
    has_expired = ended.expires_at is not None and ended.expires_at <= now_s
    if entry.acquiring or has_expired:
        return "acquire_lease", {"expires_at_ts": ended.expires_at}
    return "complete_refresh", {"new_expires_at": ended.expires_at, "now_ts": now_s}


def _retry_ms(entry: LeaseEntry, key: LeaseKey, ended: RefreshEnded) -> int:
    """Longer after each failure, and different for each lease."""
    refreshes_failed = 0 if entry.lease is None else entry.lease.refresh_attempt
    failures = max(entry.acquisitions_failed, refreshes_failed)
    pause_ms = min(RETRY_MS_MIN << min(failures, 10), RETRY_MS_MAX)
    pause_ms += int(pause_ms / 2 * _fraction(str(key)))
    return max(pause_ms, min(ended.retry_after_ms, RETRY_ASKED_MS_MAX))


# --- logins -------------------------------------------------------------------------------------


def begin_flow(
    entry: LeaseEntry, key: LeaseKey, flow: BeginFlow, *, flows: int, now_ms: int
) -> Sequence[facts.LeaseFact]:
    """Record the login, after the ends of those that took too long. ``flows``: of all leases."""
    builder, lease = _Facts(entry), entry.lease
    of_browser = () if lease is None else lease.browser_flows.items()
    of_device = () if lease is None else lease.device_flows.items()
    late = [("browser", name) for name, one in of_browser if one.expires_at_millis < now_ms]
    late += [("device", name) for name, one in of_device if one.expires_at_millis < now_ms]
    for kind, flow_id in late:
        expired = decide_input(
            builder.state, key, f"expire_oauth_{kind}_flow", {"flow_id": flow_id}
        )
        builder.add(expired)
    params: dict[str, Any] = {
        "flow_id": flow.flow_id,
        "provider": flow.provider,
        "expires_at_millis": flow.expires_at_millis,
        "max_outstanding_flows": FLOWS_MAX,
    }
    on = "admit_oauth_device_flow"
    if flow.redirect_uri:
        on, params["redirect_uri"] = "admit_oauth_browser_flow", flow.redirect_uri
    left = flows - len(late)
    builder.add(decide_input(builder.state, key, on, params, outstanding_flows=left))
    return builder.facts


def end_flow(entry: LeaseEntry, key: LeaseKey, end: EndFlow) -> Sequence[facts.LeaseFact]:
    """The end of the login, and its credential. A login whose lease was released meanwhile leads to
    none."""
    kind = "browser" if end.redirect_uri else "device"
    lease = entry.lease
    if lease is None or end.flow_id not in {*lease.browser_flows, *lease.device_flows}:
        return ()
    builder = _Facts(entry)
    builder.add(decide_input(entry, key, f"expire_oauth_{kind}_flow", {"flow_id": end.flow_id}))
    if end.sealed_as:
        params = {"expires_at_ts": end.expires_at}
        acquired = decide_input(builder.state, key, "acquire_lease", params)
        force_setattr(acquired, "sealed_as", end.sealed_as)
        builder.add(acquired)
    return builder.facts


# --- calls --------------------------------------------------------------------------------------


def on_wait(
    entry: LeaseEntry, key: LeaseKey, wait: LeaseWait, *, now_ms: int
) -> Sequence[facts.LeaseFact]:
    """A call begins to wait: if nothing else does, it begins the refresh."""
    if wait.withdrawn:
        is_known = wait.operation_id in entry.waiting
        return (facts.WaitsEnded(operation_ids=(wait.operation_id,)),) if is_known else ()
    if wait.operation_id in entry.waiting:
        return ()
    usable = is_usable(entry, now_ms)
    begun = facts.WaitBegun(
        call_session=wait.session, operation_id=wait.operation_id, is_fresh=usable or UNSET
    )
    if usable or entry.retry_at_ms > now_ms:
        return (begun,)
    return (begun, *begin_attempt(entry, key))


def end_waits(entry: LeaseEntry, ended: EndedWaits) -> Sequence[facts.LeaseFact]:
    left = tuple(one for one in ended.operation_ids if one in entry.waiting)
    return (facts.WaitsEnded(operation_ids=left),) if left else ()


def on_rejected(
    entry: LeaseEntry, key: LeaseKey, credential: int, *, now_ms: int
) -> Sequence[facts.LeaseFact]:
    """A server refused the credential: it is refreshed once, and then a login is required."""
    lease = entry.lease
    if lease is None or credential != entry.generation or entry.rejected == credential:
        return ()
    if lease.phase is REAUTH_REQUIRED or not lease.credential_present:
        return ()
    builder = _Facts(entry)
    builder.add(facts.CredentialRejected())
    published_ms = entry.credential_published_at_millis or 0
    is_again = 0 < entry.rejected == credential - 1
    if is_again and 0 <= now_ms - published_ms < REJECTED_AGAIN_MS:  # By one clock, not by two.
        required = decide_input(entry, key, "mark_reauth_required", {})
        force_setattr(required, "reason", "a server refused this credential and the one before it")
        builder.add(required)
    elif lease.phase is not REFRESHING:
        builder.add(decide_input(entry, key, "begin_refresh", {}))
    return builder.facts


class _Facts(FactBuilder[LeaseEntry, facts.LeaseFact]):
    """The facts of one decision about a lease."""

    def __init__(self, entry: LeaseEntry) -> None:
        super().__init__(entry, evolve)
