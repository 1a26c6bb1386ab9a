"""Grants: issued for one call, checked and consumed before it, revocable until then. Pure.

A grant is valid for one call with exactly the arguments of its request. If it has expired, is
revoked or is not proven before its call consumes it, the approval is requested again.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

from rookery.actors.approvals.effects import ConsumeGrant
from rookery.actors.approvals.grant_proofs import GrantProofs
from rookery.actors.approvals.requests import request_again
from rookery.actors.approvals.state import RUN_ENDED, UNPROVEN, Grant, GrantPhase, SessionApprovals
from rookery.schemas.commands import RevokeGrant
from rookery.schemas.envelope import Fact
from rookery.schemas.errors import Refused
from rookery.schemas.facts import approval as facts
from rookery.schemas.replies import GrantReceipt

__all__ = ["consume", "grant_receipt", "is_consumed", "is_made_by_node", "revoke"]


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
    proofs: GrantProofs,
    *,
    command_id: str,
    now_ms: int,
) -> Sequence[Fact]:
    """Revoke a grant. If its call has not begun, the approval is requested again."""
    is_signed = proofs.check_signature(command)
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
    fields: dict[str, Any] = {"grant_id": grant_id, "revoked_by": command.actor or command_id}
    if is_signed:
        fields |= {"key_id": command.key_id, "signature": command.signature}
    of_session = state.session_grants.get(grant_id)
    if of_session is not None:
        return (facts.GrantRevoked(**fields, generation=of_session.generation),)
    grant = state.grants[grant_id]
    request_state = state.asked.get(grant.operation_id)
    if request_state is None:
        return (facts.GrantRevoked(**fields),)
    revoked = facts.GrantRevoked(
        **fields, run=request_state.run, generation=request_state.generation
    )
    why, settings = "the grant was revoked", proofs.settings
    return (
        revoked,
        *request_again(state, session, request_state, settings, why=why, now_ms=now_ms),
    )


def grant_receipt(state: SessionApprovals, grant_id: str) -> GrantReceipt:
    found = _grant_phase(state, grant_id)
    return GrantReceipt(grant_id=grant_id, state="" if found is None else found.value)


def _covers(grant: Grant, use: ConsumeGrant) -> bool:
    return (grant.operation_id, grant.request_digest) == (use.operation_id, use.request_digest)


def is_made_by_node(
    state: SessionApprovals,
    fact: facts.GrantRevoked,
    proofs: GrantProofs,
    withdrawn: Container[str],
) -> bool:
    """Whether an unsigned revocation has a reason for which a node itself revokes the grant;
    ``state`` is the one before it, and ``withdrawn`` has the calls that were given up until then.
    """
    grant = state.grants.get(fact.grant_id)
    if grant is None:
        return False
    if fact.revoked_by == UNPROVEN:
        request_state = state.asked.get(grant.operation_id)
        return request_state is None or not proofs.proves(state, request_state, grant)
    if fact.revoked_by == RUN_ENDED:
        return grant.operation_id in withdrawn
    return fact.revoked_by == grant.session_grant_id and _is_revoked(state, fact.revoked_by)


def _is_revoked(state: SessionApprovals, session_grant_id: str) -> bool:
    grant = state.session_grants.get(session_grant_id)
    return grant is not None and grant.state is GrantPhase.REVOKED


def _grant_phase(state: SessionApprovals, grant_id: str) -> GrantPhase | None:
    found = state.grants.get(grant_id) or state.session_grants.get(grant_id)
    return None if found is None else found.state
