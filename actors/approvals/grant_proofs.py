"""Whether a signed answer proves a grant. Pure except for the lookup of approvers' keys.

Where keys are required, a call is released only if its grant goes back to an answer that a valid
key has signed, whatever the facts about the grant say: a writer without that key can store a fact
that issues a grant, and cannot sign the answer. A rule of the tool needs no answer.

An approver that is revoked proves nothing any more, so the calls that they approved and that have
not begun need a new approval.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from rookery.actors.approvals.facts import covers_any_arguments
from rookery.actors.approvals.state import (
    ApprovalRequestState,
    ApprovalSettings,
    Approver,
    Grant,
    SessionApprovals,
    SessionGrant,
)
from rookery.actors.keys.approver_signatures import is_signed_by
from rookery.schemas.approvals.records import ApprovalLifecycleStatus, DecideApproval
from rookery.schemas.commands import RevokeGrant
from rookery.schemas.errors import Refused

__all__ = ["FindApprover", "GrantProofs"]

FindApprover = Callable[[str], Approver | None]
"""Returns the approver with a key id; ``None`` for an unknown or revoked key."""

_RULE_POLICY = "approval.auto."
_ONCE = (ApprovalLifecycleStatus.APPROVED, ApprovalLifecycleStatus.APPROVED_FOR_SESSION)


class GrantProofs(NamedTuple):
    """The proofs of grants, with the settings of this node."""

    settings: ApprovalSettings
    find_approver: FindApprover

    def proves(
        self, state: SessionApprovals, request_state: ApprovalRequestState, grant: Grant
    ) -> bool:
        """Whether the call of this request may begin on this grant."""
        if not self.settings.require_keys:
            return True
        if grant.session_grant_id:
            found = state.session_grants.get(grant.session_grant_id)
            return found is not None and self.proves_session(request_state, found)
        answer = request_state.answer
        if answer is None:
            return _is_by_rule(request_state)
        return (
            answer.approval_id == request_state.approval_id == grant.approval_id
            and answer.request_digest == request_state.request_digest == grant.request_digest
            and answer.tool_digest in ("", request_state.tool_digest)
            and answer.decision in _ONCE
            and self._is_signed(answer)
        )

    def proves_session(self, request_state: ApprovalRequestState, grant: SessionGrant) -> bool:
        """Whether a grant of the session covers the call of this request."""
        if not self.settings.require_keys:
            return True
        answer = grant.answer
        return (
            answer is not None
            and answer.decision == ApprovalLifecycleStatus.APPROVED_FOR_SESSION
            and answer.tool_digest == request_state.tool_digest
            and (
                answer.request_digest == request_state.request_digest
                or covers_any_arguments(request_state)
            )
            and self._is_signed(answer)
        )

    def check_signature(self, signed: DecideApproval | RevokeGrant) -> bool:
        """Whether an approver's key signed an answer or a revocation; raises ``Refused`` if it must
        be signed and is not. One that claims a key must be signed by it."""
        kind = "answer" if isinstance(signed, DecideApproval) else "revocation"
        if not signed.key_id and not signed.signature:
            if self.settings.require_keys:
                raise Refused("SIGNATURE_REQUIRED", f"the {kind} is not signed", hint="--key FILE")
            return False
        approver = self.find_approver(signed.key_id)
        if approver is None or approver.name != signed.actor:
            text = f"{signed.key_id[:40]!r} is not a key of {signed.actor[:80]!r}"
            raise Refused("APPROVER_UNKNOWN", text, hint="rookery approvers list")
        if not is_signed_by(self.settings.realm, signed, approver.public_key):
            text = f"the signature does not match the {kind} and the key"
            raise Refused("SIGNATURE_INVALID", text)
        return True

    def _is_signed(self, answer: DecideApproval) -> bool:
        approver = self.find_approver(answer.key_id)
        return (
            approver is not None
            and approver.name == answer.actor
            and is_signed_by(self.settings.realm, answer, approver.public_key)
        )


def _is_by_rule(request_state: ApprovalRequestState) -> bool:
    """Whether no approver was asked, because the tool's rule allowed the call."""
    return not request_state.due_ms and request_state.policy.startswith(_RULE_POLICY)
