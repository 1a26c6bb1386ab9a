"""Forged answers are refused and recorded, and the valid answer is then accepted.

The list is generated: every field of a signed answer is changed, dropped, replaced by the same
field of another approval's answer, and damaged in every way that makes the answer invalid. Attacks
that need more than one field are listed by name. A field that is added to the answer is attacked
without a line here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from msgspec.structs import replace

from rookery.actors.approvals.state import APPROVERS_KEY, REFUSALS_MAX
from rookery.actors.keys.approver_signatures import Signer
from rookery.bus.clock import new_id
from rookery.bus.server.server import EmbeddedServer
from rookery.schemas.approvals.records import DecideApproval
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import Refused
from tests.approvals.approval_world import (
    ANN,
    BOB,
    CY,
    EVE,
    PAYLOAD_BYTES_MAX,
    ApprovalWorld,
    Parked,
    Sent,
    on_the_wire,
)

FIELDS = DecideApproval.__struct_fields__
OTHER = "other"
"""The session of another approval, which no approver answers."""


class ApprovalRealm(NamedTuple):
    """A realm with a node, approvers and another approval."""

    server: EmbeddedServer
    folder: Path
    other: Parked

    def play(self, scenario: Callable[[ApprovalWorld], Awaitable[None]]) -> None:
        async def open_and_play() -> None:
            async with ApprovalWorld(self.server, "world", self.folder) as world:
                await scenario(world)

        asyncio.run(open_and_play())


@pytest.fixture(scope="module")
def realm(
    server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApprovalRealm]:
    folder = tmp_path_factory.mktemp("world")

    async def begin() -> Parked:
        async with ApprovalWorld(server, "world", folder) as world:
            await world.name_approvers()
            return await world.parked(OTHER, "knock")

    with ApprovalWorld(server, "world", folder).node():
        yield ApprovalRealm(server, folder, asyncio.run(begin()))


# --- one field ------------------------------------------------------------------------------------


def changed(value: Any) -> Any:
    """A similar value that is not equal."""
    match value:
        case int():
            return value + 1
        case "approved":
            return "denied"
        case "ann":
            return "bob"
        case str() if value:
            return value[:-1] + ("1" if value[-1] != "1" else "2")
    return "x"


@pytest.mark.parametrize("how", ["changed", "dropped", "swapped"])
@pytest.mark.parametrize("field", FIELDS)
def test_an_answer_with_one_field_tampered_with_is_refused(
    realm: ApprovalRealm, field: str, how: str
):
    async def scenario(world: ApprovalWorld) -> None:
        parked = await world.parked(f"{field}-{how}")
        answer = world.signed(parked.answer())
        others = world.signed(realm.other.answer("denied", "bob"), BOB)
        others = replace(others, answered_at_ms=others.answered_at_ms + 7)
        sent, swapped = on_the_wire(answer), on_the_wire(others)
        assert sent[field], "every field says something"
        assert sent[field] != swapped[field]
        if how == "dropped":
            del sent[field]
        else:
            sent[field] = swapped[field] if how == "swapped" else changed(sent[field])
        await world.refused(parked.session, sent)
        await world.accepted(parked, answer)

    realm.play(scenario)


def wrong_type(sent: dict[str, Any], field: str) -> bytes:
    return encode_json(sent | {field: [sent[field]]})


def unknown_field(sent: dict[str, Any], field: str) -> bytes:
    return encode_json(sent | {f"{field}_too": sent[field]})


def cut_off(sent: dict[str, Any], field: str) -> bytes:
    return encode_json(sent)[: _value_at(sent, field) + 2]


def nul(sent: dict[str, Any], field: str) -> bytes:
    body, at = encode_json(sent), _value_at(sent, field) + 2
    return body[:at] + b"\0" + body[at:]


def large(sent: dict[str, Any], field: str) -> bytes:
    """A body of exactly the maximal size."""
    return _padded(sent, field, PAYLOAD_BYTES_MAX - len(encode_json(sent)))


def too_large(sent: dict[str, Any], field: str) -> bytes:
    return _padded(sent, field, PAYLOAD_BYTES_MAX)


def _padded(sent: dict[str, Any], field: str, more: int) -> bytes:
    body, at = encode_json(sent), _value_at(sent, field) + 1
    return body[:at] + b"1" * more + body[at:]


def _value_at(sent: dict[str, Any], field: str) -> int:
    name = f'"{field}":'.encode()
    return encode_json(sent).index(name) + len(name)


DAMAGES: dict[Callable[[dict[str, Any], str], bytes], str] = {
    wrong_type: "INVALID_ARGUMENT",
    unknown_field: "UNKNOWN_FIELD",
    cut_off: "INVALID_JSON",
    nul: "INVALID_JSON",
    large: "",  # Every error of such a value is accepted.
    too_large: "PAYLOAD_TOO_LARGE",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_answer_that_is_damaged_at_any_field_is_refused(
    realm: ApprovalRealm, damage: Callable[[dict[str, Any], str], bytes]
):
    async def scenario(world: ApprovalWorld) -> None:
        parked = await world.parked(damage.__name__)
        answer = world.signed(parked.answer())
        for field in FIELDS:
            body = damage(on_the_wire(answer), field)
            left = await world.refusal(parked.session, msgspec.Raw(body))
            assert left["code"] == (DAMAGES[damage] or left["code"])
            assert len(encode_json(left)) < 2_000
            if field != "approval_id":
                assert left["approval_id"] == answer.approval_id
        await world.accepted(parked, answer)

    realm.play(scenario)


@pytest.mark.parametrize("body", [b"", b"\xff\xfe", b"null", b"[[[[", b"\x82\xa1", b"{" * 5_000])
def test_a_body_that_is_no_answer_is_refused_too(realm: ApprovalRealm, body: bytes):
    async def scenario(world: ApprovalWorld) -> None:
        assert (await world.refusal(OTHER, msgspec.Raw(body)))["approval_id"] == ""

    realm.play(scenario)


def test_garbage_for_an_unknown_session_leaves_nothing(realm: ApprovalRealm):
    async def scenario(world: ApprovalWorld) -> None:
        large = world.signed(replace(realm.other.answer(), reason="x" * (PAYLOAD_BYTES_MAX // 2)))
        cut_short = msgspec.Raw(encode_json(large)[:-1])
        for sent in (msgspec.Raw(b"{"), cut_short, on_the_wire(large)):
            with pytest.raises(Refused):
                await world.client.ask("decide", "nobody", sent)
            assert not await world.is_stored(sent)
        assert await world.facts("nobody") == []

    realm.play(scenario)


def test_repeated_garbage_is_refused_again_and_recorded_once(realm: ApprovalRealm):
    async def scenario(world: ApprovalWorld) -> None:
        parked, garbage, message_id = await world.parked("garbled"), msgspec.Raw(b"{"), new_id()
        for _ in range(2):
            with pytest.raises(Refused, match="INVALID_JSON"):
                await world.client.ask("decide", "garbled", garbage, message_id=message_id)
        kinds = [fact["type"] for fact in await world.facts("garbled")]
        assert kinds.count("approval.answer_refused.v1") == 1
        await world.accepted(parked, world.signed(parked.answer()))

    realm.play(scenario)


# --- more than a field ----------------------------------------------------------------------------

Attack = Callable[[ApprovalWorld, Parked], DecideApproval]


def forged(world: ApprovalWorld, parked: Parked) -> DecideApproval:
    """An attacker's own signature under an approver's name and key id."""
    genuine = world.signed(parked.answer())
    return replace(world.signed(parked.answer(), EVE), key_id=genuine.key_id)


def unknown_key(world: ApprovalWorld, parked: Parked) -> DecideApproval:
    return world.signed(parked.answer(), EVE)


def wrong_approver(world: ApprovalWorld, parked: Parked) -> DecideApproval:
    """One approver signs in the name of another."""
    return world.signed(parked.answer(actor="ann"), BOB)


def revoked_approver(world: ApprovalWorld, parked: Parked) -> DecideApproval:
    return world.signed(parked.answer(actor="cy"), CY)


def unsigned(world: ApprovalWorld, parked: Parked) -> DecideApproval:
    return parked.answer()


def other_realm(world: ApprovalWorld, parked: Parked) -> DecideApproval:
    """An approver's genuine answer, meant for another realm."""
    return BOB.sign("elsewhere", parked.answer(actor="bob"))


def other_words(world: ApprovalWorld, parked: Parked) -> DecideApproval:
    """A signed answer with an unknown decision."""
    return world.signed(parked.answer("Approved"))


ATTACKS: dict[str, Attack] = {
    "SIGNATURE_INVALID": forged,
    "APPROVER_UNKNOWN": unknown_key,
    "APPROVER_UNKNOWN wrong": wrong_approver,
    "APPROVER_UNKNOWN revoked": revoked_approver,
    "SIGNATURE_REQUIRED": unsigned,
    "SIGNATURE_INVALID realm": other_realm,
    "DECISION_UNKNOWN": other_words,
}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_answer_with_a_wrong_signer_is_refused(realm: ApprovalRealm, name: str):
    async def scenario(world: ApprovalWorld) -> None:
        parked = await world.parked(ATTACKS[name].__name__)
        sent = on_the_wire(ATTACKS[name](world, parked))
        assert await world.refused(parked.session, sent) == name.partition(" ")[0]
        await world.accepted(parked, world.signed(parked.answer()))

    realm.play(scenario)


def test_a_requester_cannot_answer_even_with_an_approvers_key(realm: ApprovalRealm):
    async def scenario(world: ApprovalWorld) -> None:
        await world.name("selfish", EVE)
        parked = await world.parked("selfish")
        itself = on_the_wire(world.signed(parked.answer(actor="selfish"), EVE))
        agent = on_the_wire(world.signed(parked.answer(actor="agent.selfish"), EVE))
        assert await world.refused("selfish", agent) == "APPROVER_UNKNOWN"
        while (code := await world.refused("selfish", itself)) == "APPROVER_UNKNOWN":
            await asyncio.sleep(0.2)  # A node knows a key shortly after it was added.
        assert code == "SELF_APPROVAL"
        await world.accepted(parked, world.signed(parked.answer()))

    realm.play(scenario)


def test_only_an_approver_can_add_an_approver(realm: ApprovalRealm):
    """Any client may publish, and only an approver's signature counts."""
    mallory = Signer(b"m" * 32)

    async def scenario(world: ApprovalWorld) -> None:
        parked = await world.parked("usurped")
        genuine = await world.naming("mallory", mallory.public_key)
        for naming in (
            replace(genuine, key_id="", signature=""),
            replace(genuine, name="ann"),
            mallory.sign_change("world", genuine),
            ANN.sign_change("elsewhere", genuine),
        ):
            with pytest.raises(Refused) as refusal:
                await world.change(naming)
            left = (await world.facts(APPROVERS_KEY))[-1]
            assert (left["type"], left["code"]) == (
                "approval.approver_refused.v1",
                refusal.value.code,
            )
        itself = world.signed(parked.answer(actor="mallory"), mallory)
        assert await world.refused("usurped", on_the_wire(itself)) == "APPROVER_UNKNOWN"
        await world.accepted(parked, world.signed(parked.answer()))

    realm.play(scenario)


def test_an_answer_sent_to_another_session_is_refused_there(realm: ApprovalRealm):
    async def scenario(world: ApprovalWorld) -> None:
        parked = await world.parked("carried")
        answer = world.signed(parked.answer())
        assert await world.refused(OTHER, on_the_wire(answer)) == "APPROVAL_NOT_FOUND"
        await world.accepted(parked, answer)

    realm.play(scenario)


# --- again, too late, and in between --------------------------------------------------------------


def test_a_replayed_answer_is_refused(realm: ApprovalRealm):
    async def scenario(world: ApprovalWorld) -> None:
        parked = await world.parked("replayed")
        answer = world.signed(parked.answer())
        await world.accepted(parked, answer)
        for _ in range(2):
            assert await world.refused("replayed", on_the_wire(answer)) == "APPROVAL_CLOSED"

    realm.play(scenario)


def test_a_duplicate_answer_gets_the_same_receipt(realm: ApprovalRealm):
    """The client sends a command id again: it may have lost only the first reply."""

    async def scenario(world: ApprovalWorld) -> None:
        parked, message_id = await world.parked("repeated"), new_id()
        answer = world.signed(parked.answer())
        ask = partial(world.client.ask, "decide", "repeated", answer, message_id=message_id)
        first = await ask()
        await world.check_end(parked)
        before = await world.facts("repeated")
        assert await ask() == first
        assert await world.facts("repeated") == before

    realm.play(scenario)


def test_after_one_valid_answer_every_other_is_refused(realm: ApprovalRealm):
    async def scenario(world: ApprovalWorld) -> None:
        parked = await world.parked("double")
        first, second = parked.answer(), parked.answer("denied", "bob")
        await world.accepted(parked, world.signed(first))
        for answer, signer in ((second, BOB), (replace(first, reason="more"), None)):
            signed = world.signed(answer, signer) if signer else world.signed(answer)
            assert await world.refused(parked.session, on_the_wire(signed)) == "APPROVAL_CLOSED"

    realm.play(scenario)


def test_of_two_answers_at_once_one_counts(realm: ApprovalRealm):
    async def scenario(world: ApprovalWorld) -> None:
        parked = await world.parked("race")
        yes, no = parked.answer(), parked.answer("denied", "bob")
        asked = [
            world.client.ask("decide", parked.session, answer)
            for answer in (world.signed(yes), world.signed(no, BOB))
        ]
        said = await asyncio.gather(*asked, return_exceptions=True)
        assert len([one for one in said if isinstance(one, dict)]) == 1
        await parked.run.result(30)
        approved = isinstance(said[0], dict)
        assert world.strike_calls().count(parked.session) == (1 if approved else 0)

    realm.play(scenario)


@pytest.mark.parametrize("code", ["APPROVER_UNKNOWN", "INVALID_JSON"])
def test_a_flood_is_refused_and_does_not_fill_the_journal(realm: ApprovalRealm, code: str):
    async def scenario(world: ApprovalWorld) -> None:
        parked = await world.parked(f"flood-{code.lower()}")
        for number in range(2 * REFUSALS_MAX):
            answer = replace(parked.answer(), reason=str(number))
            sent: Sent = on_the_wire(world.signed(answer, EVE))
            if code == "INVALID_JSON":
                sent = msgspec.Raw(encode_json(sent)[:-1])
            with pytest.raises(Refused, match=code):
                await world.client.ask("decide", parked.session, sent)
        kinds = [fact["type"] for fact in await world.facts(parked.session)]
        assert kinds.count("approval.answer_refused.v1") == REFUSALS_MAX
        await world.accepted(parked, world.signed(parked.answer()))

    realm.play(scenario)


def test_an_answer_after_its_deadline_does_not_count(server: EmbeddedServer, tmp_path: Path):
    async def scenario() -> None:
        async with ApprovalWorld(server, "late", tmp_path) as world:
            await world.name_approvers()
            parked = await world.parked("late")
            ended = await parked.run.result(30)
            assert ended.error is not None
            assert "approval.timeout" in ended.error.message
            late = on_the_wire(world.signed(parked.answer()))
            assert await world.refused("late", late) == "APPROVAL_CLOSED"
            in_time = await world.parked("in-time")
            await world.accepted(in_time, world.signed(in_time.answer()))

    with ApprovalWorld(server, "late", tmp_path).node(ROOKERY_APPROVALS_TIMEOUT_MS="2000"):
        asyncio.run(scenario())


@pytest.mark.parametrize("number", range(2))
def test_a_crash_changes_no_outcome_of_an_answer(
    server: EmbeddedServer, tmp_path: Path, number: int
):
    """The node is killed with a forgery, garbage, the answer and its duplicate in the inbox. The
    call may be made again under its key: the kill may fall between its intent and its result."""

    async def scenario() -> None:
        async with ApprovalWorld(server, f"crash{number}", tmp_path) as world:
            with world.node() as node:
                await world.name_approvers()
                parked = await world.parked("s", "knock")
                answer = world.signed(parked.answer())
                sent: list[Sent] = [
                    on_the_wire(replace(answer, reason="forged")),
                    msgspec.Raw(b"{"),
                    on_the_wire(answer),
                    on_the_wire(answer),
                ]
                for one in sent:
                    await world.publish("s", one)
                await asyncio.sleep(number * 0.01)
                node.kill()
            with world.node():
                assert (await parked.run.result(30)).result == "knocked s"
            assert len(set(world.knock_calls())) == 1
            kinds = [fact["type"] for fact in await world.facts("s")]
            for once in ("answered", "grant_issued", "grant_consumed"):
                assert kinds.count(f"approval.{once}.v1") == 1, kinds
            assert kinds.count("approval.answer_refused.v1") == 3, kinds

    asyncio.run(scenario())
