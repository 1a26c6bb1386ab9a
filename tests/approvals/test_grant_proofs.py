"""Where keys are required, a call begins only on a grant that a signed answer proves; an approval
for the session covers the tool as it was shown, with the arguments shown.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.approvals.effects import ReleaseCall
from rookery.actors.approvals.state import ApprovalSettings, Approver
from rookery.actors.keys.approver_signatures import Signer
from rookery.schemas.approvals.records import DecideApproval, tool_digest
from rookery.schemas.calls import ApprovalMode, AutoApproval, AutoRule
from rookery.schemas.commands import RevokeGrant
from rookery.schemas.errors import CodedError
from rookery.schemas.facts import approval
from tests.approvals.approval_histories import SESSION, History
from tests.tools.tool_fixtures import capability

ANN, EVE = Signer(b"a" * 32), Signer(b"e" * 32)
SETTINGS = ApprovalSettings(realm="r", require_keys=True)
GUARDED = capability("guarded", approval_policy=ApprovalMode.MANUAL)
WIDE = capability("wide", approval_policy=ApprovalMode.MANUAL_ANY_ARGUMENTS)
RULED = capability("ruled", approval_policy=AutoApproval(AutoRule("args.a == 1")))


class Signed(History):
    """A session in a realm that requires keys; Ann is its approver until she is revoked."""

    def __init__(self) -> None:
        self.approvers = {
            ANN.key_id: Approver(name="ann", key_id=ANN.key_id, public_key=ANN.public_key)
        }
        super().__init__(GUARDED, WIDE, RULED, settings=SETTINGS, find_approver=self.approvers.get)

    def begin(self, number: int, tool: str = "guarded", **given: Any) -> str:
        operation_id = self.call(number, tool, **given)
        self.settle()
        return operation_id

    def signed(self, operation_id: str, decision: str = "approved") -> DecideApproval:
        asked = self.asked(operation_id)
        digest = tool_digest(asked.tool, asked.surface, asked.schema_digest, asked.policy)
        return ANN.sign("r", self.answer_to(operation_id, decision, tool_digest=digest))

    def approve(self, operation_id: str, decision: str = "approved") -> Any:
        answered = self.put("approval", self.signed(operation_id, decision), verb="decide")
        self.settle()
        return answered

    @property
    def called(self) -> list[str]:
        return [operation for operation, _ in self.acts]

    def forge(self, *facts: approval.ApprovalFact) -> None:
        """Facts that another writer has appended, as the node reads them after a restart."""
        concern = self.concerns["approval"]
        for fact in facts:
            self.states["approval"] = concern.evolve(self.states["approval"], fact)
        for fact in facts:
            self.pending += concern.effects(self.states["approval"], fact)


def test_a_signed_answer_releases_its_call_and_the_fact_has_the_signature():
    session = Signed()
    operation_id = session.begin(1, a=1)
    session.approve(operation_id)
    assert session.called == [operation_id]
    (answered,) = session.of(approval.Answered)
    assert answered.signature == session.signed(operation_id).signature
    assert answered.request_digest == session.asked(operation_id).request_digest


def forged_facts(session: Signed, operation_id: str, how: str) -> list[Any]:
    """What a forger writes to release a call that waits."""
    asked = session.asked(operation_id)
    ids = {
        "session": SESSION,
        "approval_id": asked.approval_id,
        "operation_id": operation_id,
        "run": asked.run,
        "generation": asked.generation,
    }
    other = session.begin(9, a=9)
    session.approve(other)
    (genuine,) = session.of(approval.Answered)
    answered = replace(genuine, **ids, request_digest=asked.request_digest)
    if how == "unsigned":
        answered = replace(answered, signature="")
    if how == "by another key":
        by_eve = EVE.sign("r", session.answer_to(operation_id))
        answered = replace(answered, key_id=by_eve.key_id, signature=by_eve.signature)
    grant = approval.GrantIssued(
        **ids,
        grant_id=f"grant.{asked.approval_id}",
        request_digest=asked.request_digest,
        expires_at_ms=1 << 50,
    )
    if how == "of the session":
        session_grant = approval.SessionGrantIssued(
            grant_id="session-grant.x",
            approval_id=asked.approval_id,
            tool="guarded",
            policy=asked.policy,
            actor="ann",
            expires_at_ms=1 << 50,
            generation=asked.generation,
        )
        return [session_grant, replace(grant, session_grant_id="session-grant.x")]
    return [grant] if how == "no answer" else [answered, grant]


@pytest.mark.parametrize(
    "how", ["no answer", "unsigned", "of another call", "by another key", "of the session"]
)
def test_a_forged_grant_releases_no_call_and_the_call_is_requested_again(how: str):
    session = Signed()
    operation_id = session.begin(1, a=1)
    facts = forged_facts(session, operation_id, how)
    before = list(session.called)
    session.forge(*facts)
    assert any(isinstance(effect, ReleaseCall) for effect in session.pending)
    session.settle()
    assert session.called == before
    assert session.asked(operation_id).attempt == 2
    session.approve(operation_id)
    assert session.called == [*before, operation_id]


def test_a_revoked_approver_releases_no_further_call():
    session = Signed()
    operation_id = session.begin(1, a=1)
    answered = session.put("approval", session.signed(operation_id), verb="decide")
    assert answered.verified
    session.approvers.clear()
    session.settle()
    assert session.called == []
    assert session.asked(operation_id).attempt == 2


def test_a_rule_of_the_tool_needs_no_signature():
    session = Signed()
    operation_id = session.begin(1, "ruled", a=1)
    assert session.called == [operation_id]


# --- for the session ------------------------------------------------------------------------------


def test_an_approval_for_the_session_covers_the_same_arguments_only():
    session = Signed()
    first = session.begin(1, a=1)
    session.approve(first, "approved_for_session")
    same, other = session.begin(2, a=1), session.begin(3, a=2)
    assert sorted(session.called) == sorted([first, same])
    assert session.waiting == [first, other]
    (granted,) = session.of(approval.SessionGrantIssued)
    asked = session.asked(first)
    assert (granted.surface, granted.schema_digest) == (asked.surface, asked.schema_digest)
    assert granted.request_digest == asked.request_digest


def test_a_policy_may_let_it_cover_any_arguments():
    session = Signed()
    first = session.begin(1, "wide", a=1)
    session.approve(first, "approved_for_session")
    other = session.begin(2, "wide", a=2)
    assert session.called == [first, other]


def test_a_tool_with_another_schema_or_surface_needs_a_new_approval():
    session = Signed()
    session.approve(session.begin(1, a=1), "approved_for_session")
    (granted,) = session.of(approval.SessionGrantIssued)
    for changed in ({"schema_digest": "0" * 64}, {"surface": "desk"}):
        other = Signed()
        asked = other.begin(1, a=1)
        other.forge(replace(granted, **changed, run=UNSET))
        assert other.waiting == [asked]
        second = other.begin(2, a=1)
        assert second in other.waiting


def test_a_signed_approval_for_the_session_must_name_the_tool():
    session = Signed()
    operation_id = session.begin(1, a=1)
    unnamed = ANN.sign("r", session.answer_to(operation_id, "approved_for_session"))
    refused = session.put("approval", unnamed, verb="decide")
    assert isinstance(refused, CodedError)
    assert refused.code == "SIGNATURE_REQUIRED"
    wrong = ANN.sign("r", session.answer_to(operation_id, tool_digest="0" * 64))
    assert session.put("approval", wrong, verb="decide").code == "APPROVAL_MISMATCH"
    long = ANN.sign("r", session.answer_to(operation_id, reason="x" * 1_001))
    assert session.put("approval", long, verb="decide").code == "INVALID_ARGUMENT"
    assert session.approve(operation_id, "approved_for_session").verified


def test_grants_of_older_versions_stay_valid_where_no_keys_are_required():
    session = History(GUARDED)
    first = session.call(1, "guarded", a=1)
    session.settle()
    asked = session.asked(first)
    older = approval.SessionGrantIssued(
        grant_id="session-grant.x",
        approval_id=asked.approval_id,
        tool="guarded",
        policy=asked.policy,
        actor="ann",
        expires_at_ms=1 << 50,
        generation=asked.generation,
    )
    session.states["approval"] = session.concerns["approval"].evolve(
        session.states["approval"], older
    )
    second = session.call(2, "guarded", a=2)
    session.settle()
    assert [operation for operation, _ in session.acts] == [second]


def test_where_keys_are_required_a_revocation_is_signed_and_its_fact_has_the_signature():
    session = Signed()
    session.approve(session.begin(1, a=1), "approved_for_session")
    (granted,) = session.of(approval.SessionGrantIssued)
    by_ann = RevokeGrant(grant_id=granted.grant_id, actor="ann")
    signed = ANN.sign_revocation("r", by_ann)
    refused = {
        by_ann: "SIGNATURE_REQUIRED",
        EVE.sign_revocation("r", by_ann): "APPROVER_UNKNOWN",
        replace(signed, actor="bob"): "APPROVER_UNKNOWN",
        replace(signed, grant_id="another"): "SIGNATURE_INVALID",
        ANN.sign_revocation("another realm", by_ann): "SIGNATURE_INVALID",
    }
    assert [session.put("approval", one).code for one in refused] == list(refused.values())
    assert session.of(approval.GrantRevoked) == []
    assert session.put("approval", signed).state == "revoked"
    (revoked,) = session.of(approval.GrantRevoked)
    assert (revoked.revoked_by, revoked.signature) == ("ann", signed.signature)
    second = session.begin(2, a=1)
    assert second not in session.called
