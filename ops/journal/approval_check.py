"""The check of approvals: approvers, answers and grants are what approvers have signed.

It repeats, for the facts of all sessions, what the nodes check before they release a call: changes
of approvers continue the line from the root key, a verified answer has its approver's signature,
and from where a node says that it requires keys, no call began without one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rookery.actors.approvals import ApprovalsDecider, ApproverLine, GrantProofs, is_made_by_node
from rookery.actors.approvals.state import (
    APPROVERS_KEY,
    ApprovalSettings,
    Approver,
    GrantPhase,
    SessionApprovals,
)
from rookery.actors.keys.approver_signatures import is_signed_by, signed_answer, signed_revocation
from rookery.actors.peers.roster import RosterSigners
from rookery.bus.ports import StoredMessage
from rookery.ops.journal.damage import MessageDamage
from rookery.schemas.codec import fact_tag
from rookery.schemas.envelope import Fact
from rookery.schemas.facts import approval, tool
from rookery.schemas.facts.node import Started

__all__ = ["ApprovalCheck"]

_WITHDRAWN: Final = fact_tag(tool.Withdrawn).encode()
_REVOCATION_LAG_MS: Final = 10_000
"""A node may accept an answer until it has learned that its approver was revoked."""


class ApprovalCheck:
    """Checks the facts of approvals in journal order. ``defects`` grows."""

    def __init__(self, realm: str, root_key: str = "", *, require_keys: bool = False) -> None:
        """``require_keys``: the realm requires keys now, whatever a node says that starts."""
        self._realm, self._is_configured, self._is_required = realm, require_keys, False
        self._signs_revocations = False
        self._line = ApproverLine(realm, root_key)
        self._revoked: dict[str, tuple[Approver, int]] = {}
        settings = ApprovalSettings(realm=realm, root_key=root_key, require_keys=True)
        self._proofs = GrantProofs(settings, self._find_approver)
        self._decider = ApprovalsDecider(settings, calls=False)
        self._sessions: dict[str, SessionApprovals] = {}
        """Those with a request or a grant that is open."""
        self._withdrawn: dict[str, set[str]] = {}
        """By session, the calls that were given up before their tools were called."""
        self._now_ms = 0
        self.signed_answers = 0
        self.defects: list[MessageDamage] = []

    def signers(self) -> RosterSigners:
        """Whose signatures count under changes of the roster, after the messages so far."""
        return RosterSigners(self._line.root_key, self._line.public_keys, self._line.former)

    def add(self, stored: StoredMessage, facts: Sequence[Fact]) -> None:
        """Check the next message; those of other families say nothing."""
        family = stored.entity.family
        if family not in ("approval", "node"):
            if _WITHDRAWN in stored.body:
                self._add_withdrawn(stored.entity.key, facts)
            return
        # A forger may date a fact back, but not those before it.
        self._now_ms = max(self._now_ms, *(fact.at_ms for fact in facts), 0)
        if family == "node":
            self._add_settings(facts)
        elif stored.entity.key == APPROVERS_KEY:
            self._add_changes(stored, facts)
        else:
            self._add_approvals(stored, facts)

    def _add_settings(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            if isinstance(fact, Started):
                still = self._is_required and self._is_configured
                self._is_required = fact.require_keys or still
                self._signs_revocations |= fact.signs_revocations

    def _add_changes(self, stored: StoredMessage, facts: Sequence[Fact]) -> None:
        for fact in facts:
            if not isinstance(fact, approval.ApproverAdded | approval.ApproverRevoked):
                continue
            known = self._line.approvers.get(fact.key_id)
            if fault := self._line.add(fact):
                self._report(stored, f"the change of approver {fact.name} is forged: {fault}")
            elif known is not None and isinstance(fact, approval.ApproverRevoked):
                self._revoked[fact.key_id] = known, self._now_ms

    def _add_withdrawn(self, session: str, facts: Sequence[Fact]) -> None:
        """A revocation of their grants follows, and the request itself may still follow."""
        calls = [fact.operation_id for fact in facts if isinstance(fact, tool.Withdrawn)]
        self._withdrawn.setdefault(session, set()).update(calls)

    def _add_approvals(self, stored: StoredMessage, facts: Sequence[Fact]) -> None:
        key = stored.entity.key
        state = self._sessions.get(key, SessionApprovals())
        for fact in facts:
            match fact:
                case approval.Answered():
                    self._check_answer(stored, fact)
                case approval.GrantConsumed() if self._is_required:
                    self._check_grant(stored, state, fact.grant_id, "released a call")
                case approval.GrantRevoked() if self._is_required and self._signs_revocations:
                    self._check_revocation(stored, state, fact)
            state = self._decider.evolve(state, fact)
            if isinstance(fact, approval.GrantIssued) and self._is_required:
                self._check_grant(stored, state, fact.grant_id, "was issued")
        if _is_open(state):
            self._sessions[key] = state
        else:
            self._sessions.pop(key, None)

    def _check_answer(self, stored: StoredMessage, fact: approval.Answered) -> None:
        answer = signed_answer(fact)
        if answer is None:
            if self._is_required:
                self._report(stored, f"the answer to {fact.approval_id} is not signed")
            return
        approver = self._find_approver(answer.key_id)
        if approver is None or approver.name != answer.actor:
            text = f"{answer.key_id} is not a key of {answer.actor}"
            self._report(stored, f"the answer to {fact.approval_id} is forged: {text}")
        elif not is_signed_by(self._realm, answer, approver.public_key):
            text = "its signature does not match"
            self._report(stored, f"the answer to {fact.approval_id} is forged: {text}")
        else:
            self.signed_answers += 1

    def _check_grant(
        self, stored: StoredMessage, state: SessionApprovals, grant_id: str, event: str
    ) -> None:
        grant = state.grants.get(grant_id)
        request: Any = None if grant is None else state.asked.get(grant.operation_id)
        if grant is None or request is None or not self._proofs.proves(state, request, grant):
            self._report(stored, f"{grant_id} {event}, and no signed answer proves it")

    def _check_revocation(
        self, stored: StoredMessage, state: SessionApprovals, fact: approval.GrantRevoked
    ) -> None:
        """An approver signs it, or a node has made it for a reason that the facts show."""
        revocation, fault = signed_revocation(fact), ""
        if revocation is None:
            now = GrantProofs(self._proofs.settings, self._line.approvers.get)
            withdrawn = self._withdrawn.get(stored.entity.key, ())
            fault = "" if is_made_by_node(state, fact, now, withdrawn) else "it is not signed"
        else:
            approver = self._find_approver(revocation.key_id)
            if approver is None or approver.name != revocation.actor:
                fault = f"{revocation.key_id} is not a key of {revocation.actor}"
            elif not is_signed_by(self._realm, revocation, approver.public_key):
                fault = "its signature does not match"
        if fault:
            self._report(stored, f"the revocation of {fact.grant_id} is forged: {fault}")

    def _find_approver(self, key_id: str) -> Approver | None:
        found = self._line.approvers.get(key_id)
        if found is None and key_id in self._revoked:
            approver, revoked_ms = self._revoked[key_id]
            return approver if self._now_ms - revoked_ms < _REVOCATION_LAG_MS else None
        return found

    def _report(self, stored: StoredMessage, text: str) -> None:
        self.defects.append(MessageDamage.forged(stored.sequence, str(stored.entity), text))


def _is_open(state: SessionApprovals) -> bool:
    return (
        any(request.is_pending for request in state.asked.values())
        or any(grant.state is GrantPhase.ISSUED for grant in state.grants.values())
        or any(grant.state is GrantPhase.ISSUED for grant in state.session_grants.values())
    )
