"""Grants: issued for one call, checked and consumed before it, revocable until then. Pure.

A grant is valid for one call with exactly the arguments of its request. If it has expired, is
revoked or is not proven before its call consumes it, the approval is requested again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rookery.actors.approvals.effects import ConsumeGrant
from rookery.actors.approvals.grant_proofs import GrantProofs
from rookery.actors.approvals.requests import request_again
from rookery.actors.approvals.state import ApprovalSettings, Grant, GrantPhase, SessionApprovals
from rookery.schemas.commands import RevokeGrant
from rookery.schemas.envelope import Fact
from rookery.schemas.errors import Refused
from rookery.schemas.facts import approval as facts
from rookery.schemas.replies import GrantReceipt

__all__ = ["consume", "grant_receipt", "is_consumed", "revoke"]

UNPROVEN: Final = "no valid approver's signature proves the grant"


def consume(
    state: SessionApprovals,
    session: str,
    use: ConsumeGrant,
    proofs: GrantProofs,
    *,
    now_ms: int,
) -> Sequence[Fact]:
    """Consume the grant; an expired, revoked or unproven one is replaced by a new request."""
    grant = state.grants.get(use.grant_id)
    if grant is None or grant.state is not GrantPhase.ISSUED or not _covers(grant, use):
        return ()
    request_state = state.asked.get(grant.operation_id)
    if request_state is None or request_state.grant_id != grant.grant_id:
        return ()
    of_call: dict[str, Any] = {"run": request_state.run, "generation": request_state.generation}
    lost: Fact | None = None
    if now_ms >= grant.expires_at_ms:
        lost = facts.GrantExpired(grant_id=grant.grant_id, **of_call)
    elif _is_revoked(state, grant.session_grant_id):
        by = grant.session_grant_id
        lost = facts.GrantRevoked(grant_id=grant.grant_id, revoked_by=by, **of_call)
    elif not proofs.proves(state, request_state, grant):
        lost = facts.GrantRevoked(grant_id=grant.grant_id, revoked_by=UNPROVEN, **of_call)
    if lost is None:
        used = facts.GrantConsumed(
            approval_id=grant.approval_id,
            operation_id=grant.operation_id,
            grant_id=grant.grant_id,
            request_digest=grant.request_digest,
            **of_call,
        )
        return (used,)
    why = "the grant was not used in time"
    if isinstance(lost, facts.GrantRevoked):
        why = UNPROVEN if lost.revoked_by == UNPROVEN else "the session's grant was revoked"
    settings = proofs.settings
    return (lost, *request_again(state, session, request_state, settings, why=why, now_ms=now_ms))


def is_consumed(state: SessionApprovals, use: ConsumeGrant) -> bool:
    """Whether this call has consumed the grant."""
    grant = state.grants.get(use.grant_id)
    return grant is not None and grant.state is GrantPhase.CONSUMED and _covers(grant, use)


def revoke(
    state: SessionApprovals,
    session: str,
    command: RevokeGrant,
    settings: ApprovalSettings,
    *,
    by: str,
    now_ms: int,
) -> Sequence[Fact]:
    """Revoke a grant. If its call has not begun, the approval is requested again."""
    grant_id = command.grant_id
    found = _grant_phase(state, grant_id)
    if found is None:
        raise Refused(
            "GRANT_NOT_FOUND",
            f"the session has no grant {grant_id[:120]!r}",
            hint="rookery approvals grants list",
        )
    if found is not GrantPhase.ISSUED:
        return ()
    of_session = state.session_grants.get(grant_id)
    if of_session is not None:
        generation = of_session.generation
        return (facts.GrantRevoked(grant_id=grant_id, revoked_by=by, generation=generation),)
    grant = state.grants[grant_id]
    request_state = state.asked.get(grant.operation_id)
    if request_state is None:
        return (facts.GrantRevoked(grant_id=grant_id, revoked_by=by),)
    revoked = facts.GrantRevoked(
        grant_id=grant_id, revoked_by=by, run=request_state.run, generation=request_state.generation
    )
    why = "the grant was revoked"
    return (
        revoked,
        *request_again(state, session, request_state, settings, why=why, now_ms=now_ms),
    )


def grant_receipt(state: SessionApprovals, grant_id: str) -> GrantReceipt:
    found = _grant_phase(state, grant_id)
    return GrantReceipt(grant_id=grant_id, state="" if found is None else found.value)


def _covers(grant: Grant, use: ConsumeGrant) -> bool:
    return (grant.operation_id, grant.request_digest) == (use.operation_id, use.request_digest)


def _is_revoked(state: SessionApprovals, session_grant_id: str) -> bool:
    grant = state.session_grants.get(session_grant_id)
    return grant is not None and grant.state is GrantPhase.REVOKED


def _grant_phase(state: SessionApprovals, grant_id: str) -> GrantPhase | None:
    found = state.grants.get(grant_id) or state.session_grants.get(grant_id)
    return None if found is None else found.state
