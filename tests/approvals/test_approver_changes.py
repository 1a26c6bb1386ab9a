"""The first approver needs no signature; every later change is signed by a current approver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from rookery.actors.approvals.approvers import ApproverLine
from rookery.actors.approvals.decider import ApprovalsDecider
from rookery.actors.approvals.state import APPROVERS_KEY, REFUSALS_MAX, ApprovalSettings
from rookery.actors.keys.approver_signatures import Signer
from rookery.ops.config import ApprovalsConfig
from rookery.ops.run_services import approval_settings
from rookery.schemas.commands import ChangeApprover
from rookery.schemas.envelope import Command, Fact
from rookery.schemas.errors import Refused
from rookery.schemas.facts import approval
from rookery.schemas.replies import ApproverReceipt

REALM = "bench"
ANN, BOB, EVE, ROOT = (Signer(letter * 32) for letter in (b"a", b"b", b"e", b"r"))


class Register:
    """The approvers of a realm, as their actor stores them."""

    def __init__(self, root_key: str = "") -> None:
        self.root_key = root_key
        self.concern = ApprovalsDecider(ApprovalSettings(realm=REALM, root_key=root_key))
        self.state: Any = self.concern.initial(APPROVERS_KEY)
        self.facts: list[Fact] = []

    def change(self, naming: ChangeApprover, *, repeated: bool = False) -> Any:
        """The reply to a change."""
        command = Command(
            verb="approvers",
            key=APPROVERS_KEY,
            id="c",
            body=naming,
            reply_to="r",
            is_duplicate=repeated,
        )
        try:
            left: Sequence[Fact] = self.concern.decide(self.state, command, now_ms=1_000)
        except Refused as refusal:
            return refusal
        for fact in left:
            self.state = self.concern.evolve(self.state, fact)
        self.facts += left
        return self.concern.reply(self.state, command, left)

    def naming(self, name: str, key: Signer | None = None) -> ChangeApprover:
        """A change that adds this key; without a key it revokes the name."""
        public_key = "" if key is None else key.public_key
        return ChangeApprover(name=name, public_key=public_key, change=self.line.count + 1)

    def signed(self, name: str, key: Signer | None = None, by: Signer = ANN) -> ChangeApprover:
        return by.sign_change(REALM, self.naming(name, key))

    def refused(self, naming: ChangeApprover) -> str:
        """Send a change; check that it is refused and recorded and changes nothing. The code."""
        before, approvers = len(self.facts), self.line.approvers
        said = self.change(naming)
        assert isinstance(said, Refused)
        (left,) = self.facts[before:]
        assert isinstance(left, approval.ApproverRefused)
        assert (left.name, left.code) == (naming.name, said.code)
        assert self.line.approvers == approvers
        return said.code

    @property
    def line(self) -> ApproverLine:
        """The approvers as every reader derives them from the facts."""
        return ApproverLine(REALM, self.root_key, self.state.changes)

    @property
    def names(self) -> list[str]:
        return sorted(one.name for one in self.line.approvers.values())


def test_the_first_approver_needs_no_signature_and_signs_the_next():
    register = Register()
    receipt = register.change(register.naming("ann", ANN))
    assert receipt == ApproverReceipt(name="ann", key_ids=(ANN.key_id,), changes=1)
    assert register.refused(register.naming("eve", EVE)) == "SIGNATURE_REQUIRED"
    assert register.change(register.signed("bob", BOB)).changes == 2
    assert register.change(register.signed("ann", by=BOB)).key_ids == ()
    assert register.names == ["bob"]
    assert register.refused(register.signed("eve", EVE, by=ANN)) == "APPROVER_UNKNOWN"


@pytest.mark.parametrize("how", ["changed", "dropped"])
@pytest.mark.parametrize("field", ChangeApprover.__struct_fields__)
def test_a_change_with_one_altered_field_adds_no_approver(field: str, how: str):
    register = Register()
    register.change(register.naming("ann", ANN))
    genuine = register.signed("bob", BOB)
    others = EVE.sign_change("elsewhere", ChangeApprover(name="eve", public_key=EVE.public_key))
    given: Any = {"changed": getattr(others, field), "dropped": type(getattr(others, field))()}
    before = register.line.approvers
    assert isinstance(register.change(replace(genuine, **{field: given[how]})), Refused)
    assert register.line.approvers == before
    assert register.change(genuine).key_ids == (BOB.key_id,)


def test_a_change_of_another_realm_or_signer_is_refused_and_recorded():
    register = Register()
    register.change(register.naming("ann", ANN))
    naming = register.naming("eve", EVE)
    assert register.refused(ANN.sign_change("elsewhere", naming)) == "SIGNATURE_INVALID"
    assert register.refused(EVE.sign_change(REALM, naming)) == "APPROVER_UNKNOWN"
    forged = replace(EVE.sign_change(REALM, naming), key_id=ANN.key_id)
    assert register.refused(forged) == "SIGNATURE_INVALID"


def test_a_replayed_change_is_refused():
    register = Register()
    register.change(register.naming("ann", ANN))
    added = register.signed("bob", BOB)
    register.change(added)
    assert register.change(added).changes == 2, "the change is committed, so there is nothing to do"
    register.change(register.signed("bob"))
    assert register.refused(added) == "GUARD_REJECTED"
    assert register.names == ["ann"]


def test_a_duplicate_change_gets_the_same_receipt():
    register = Register()
    first, unsigned = register.naming("ann", ANN), register.naming("eve", EVE)
    assert register.change(first) == register.change(first, repeated=True)
    register.refused(unsigned)
    assert register.change(unsigned, repeated=True).code == "SIGNATURE_REQUIRED"


def test_a_key_that_can_sign_the_next_change_always_remains():
    register = Register()
    register.change(register.naming("ann", ANN))
    assert register.refused(register.signed("ann")) == "GUARD_REJECTED"
    register.change(register.signed("bob", BOB))
    register.change(register.signed("ann"))
    assert register.names == ["bob"]


def test_with_a_root_key_the_first_change_is_signed_and_the_last_approver_can_be_revoked():
    register = Register(ROOT.public_key)
    assert register.refused(register.naming("eve", EVE)) == "SIGNATURE_REQUIRED"
    register.change(register.signed("ann", ANN, by=ROOT))
    register.change(register.signed("bob", BOB, by=ANN))
    register.change(register.signed("bob", by=ROOT))
    register.change(register.signed("ann"))
    assert register.names == []
    assert register.refused(register.naming("eve", EVE)) == "SIGNATURE_REQUIRED"
    register.change(register.signed("ann", ANN, by=ROOT))
    assert register.names == ["ann"]


def test_an_invalid_root_key_is_refused_by_the_configuration():
    configured = approval_settings(REALM, ApprovalsConfig(root_key=ROOT.private_pem))
    assert configured.root_key == ROOT.public_key
    with pytest.raises(Refused, match="CONFIG_INVALID"):
        approval_settings(REALM, ApprovalsConfig(root_key=ROOT.public_key[:-1]))


def test_a_flood_of_approver_changes_does_not_fill_the_journal():
    register = Register()
    register.change(register.naming("ann", ANN))
    for number in range(2 * REFUSALS_MAX):
        assert isinstance(register.change(register.naming(f"eve{number}", EVE)), Refused)
    assert len(register.facts) == 1 + REFUSALS_MAX
