"""Answers nobody may count, each refused and on record, and then the untouched one, accepted.

The list is generated: every field of a signed answer is changed, dropped, swapped for the one of
another approval's answer, and damaged in every way that keeps the answer from being read. What
needs more than a field stands below by name. A field that is added to the answer is attacked
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

from rookery.actors.approvals.signing import Signer
from rookery.actors.approvals.state import APPROVERS_KEY, REFUSALS_MAX
from rookery.bus.client.client import new_id
from rookery.bus.server.server import EmbeddedServer
from rookery.schemas.approvals.decision import DecideApproval
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
"""The session of another approval, which nobody answers."""


class ApprovalRealm(NamedTuple):
    """A realm with a node, approvers and another approval."""

    server: EmbeddedServer
    folder: Path
    other: Parked

    def told(self, story: Callable[[ApprovalWorld], Awaitable[None]]) -> None:
        async def tell() -> None:
            async with ApprovalWorld(self.server, "court", self.folder) as court:
                await story(court)

        asyncio.run(tell())


@pytest.fixture(scope="module")
def place(
    server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApprovalRealm]:
    folder = tmp_path_factory.mktemp("court")

    async def begin() -> Parked:
        async with ApprovalWorld(server, "court", folder) as court:
            await court.name_approvers()
            return await court.parked(OTHER)

    with ApprovalWorld(server, "court", folder).node():
        yield ApprovalRealm(server, folder, asyncio.run(begin()))


# --- one field ------------------------------------------------------------------------------------


def changed(value: Any) -> Any:
    """Something near it that is not it."""
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
    place: ApprovalRealm, field: str, how: str
):
    async def story(court: ApprovalWorld) -> None:
        parked = await court.parked(f"{field}-{how}")
        answer = court.signed(parked.answer())
        others = court.signed(place.other.answer("denied", "bob"), BOB)
        others = replace(others, answered_at_ms=others.answered_at_ms + 7)
        sent, swapped = on_the_wire(answer), on_the_wire(others)
        assert sent[field], "every field says something"
        assert sent[field] != swapped[field]
        if how == "dropped":
            del sent[field]
        else:
            sent[field] = swapped[field] if how == "swapped" else changed(sent[field])
        await court.refused(parked.session, sent)
        await court.accepted(parked, answer)

    place.told(story)


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
    """As large as a body may be, and read."""
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
    large: "",  # Whatever is wrong with such a value.
    too_large: "PAYLOAD_TOO_LARGE",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_answer_that_is_damaged_at_any_field_is_refused(
    place: ApprovalRealm, damage: Callable[[dict[str, Any], str], bytes]
):
    async def story(court: ApprovalWorld) -> None:
        parked = await court.parked(damage.__name__)
        answer = court.signed(parked.answer())
        for field in FIELDS:
            body = damage(on_the_wire(answer), field)
            left = await court.refusal(parked.session, msgspec.Raw(body))
            assert left["code"] == (DAMAGES[damage] or left["code"])
            assert len(encode_json(left)) < 2_000
            if field != "approval_id":
                assert left["approval_id"] == answer.approval_id
        await court.accepted(parked, answer)

    place.told(story)


@pytest.mark.parametrize("body", [b"", b"\xff\xfe", b"null", b"[[[[", b"\x82\xa1", b"{" * 5_000])
def test_what_is_no_answer_at_all_is_refused_too(place: ApprovalRealm, body: bytes):
    async def story(court: ApprovalWorld) -> None:
        assert (await court.refusal(OTHER, msgspec.Raw(body)))["approval_id"] == ""

    place.told(story)


def test_garbage_for_an_unknown_session_leaves_nothing(place: ApprovalRealm):
    async def story(court: ApprovalWorld) -> None:
        large = court.signed(replace(place.other.answer(), reason="x" * (PAYLOAD_BYTES_MAX // 2)))
        cut_short = msgspec.Raw(encode_json(large)[:-1])
        for sent in (msgspec.Raw(b"{"), cut_short, on_the_wire(large)):
            with pytest.raises(Refused):
                await court.client.ask("decide", "nobody", sent)
            assert not await court.keeps(sent)
        assert await court.facts("nobody") == []

    place.told(story)


def test_garbage_that_is_sent_again_is_refused_again_and_recorded_once(place: ApprovalRealm):
    async def story(court: ApprovalWorld) -> None:
        parked, garbage, message_id = await court.parked("garbled"), msgspec.Raw(b"{"), new_id()
        for _ in range(2):
            with pytest.raises(Refused, match="INVALID_JSON"):
                await court.client.ask("decide", "garbled", garbage, message_id=message_id)
        kinds = [fact["type"] for fact in await court.facts("garbled")]
        assert kinds.count("approval.answer_refused.v1") == 1
        await court.accepted(parked, court.signed(parked.answer()))

    place.told(story)


# --- more than a field ----------------------------------------------------------------------------

Attack = Callable[[ApprovalWorld, Parked], DecideApproval]


def forged(court: ApprovalWorld, parked: Parked) -> DecideApproval:
    """Somebody's own signature under an approver's name and key."""
    genuine = court.signed(parked.answer())
    return replace(court.signed(parked.answer(), EVE), key_id=genuine.key_id)


def unknown_key(court: ApprovalWorld, parked: Parked) -> DecideApproval:
    return court.signed(parked.answer(), EVE)


def wrong_approver(court: ApprovalWorld, parked: Parked) -> DecideApproval:
    """One approver in the name of another."""
    return court.signed(parked.answer(actor="ann"), BOB)


def revoked_approver(court: ApprovalWorld, parked: Parked) -> DecideApproval:
    return court.signed(parked.answer(actor="cy"), CY)


def nobody(court: ApprovalWorld, parked: Parked) -> DecideApproval:
    return parked.answer()


def other_realm(court: ApprovalWorld, parked: Parked) -> DecideApproval:
    """An approver's genuine answer, meant for another realm."""
    return BOB.sign("elsewhere", parked.answer(actor="bob"))


def other_words(court: ApprovalWorld, parked: Parked) -> DecideApproval:
    """Signed, but not one of the three words."""
    return court.signed(parked.answer("Approved"))


ATTACKS: dict[str, Attack] = {
    "SIGNATURE_INVALID": forged,
    "APPROVER_UNKNOWN": unknown_key,
    "APPROVER_UNKNOWN wrong": wrong_approver,
    "APPROVER_UNKNOWN revoked": revoked_approver,
    "SIGNATURE_REQUIRED": nobody,
    "SIGNATURE_INVALID realm": other_realm,
    "DECISION_UNKNOWN": other_words,
}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_answer_of_the_wrong_hand_is_refused(place: ApprovalRealm, name: str):
    async def story(court: ApprovalWorld) -> None:
        parked = await court.parked(ATTACKS[name].__name__)
        sent = on_the_wire(ATTACKS[name](court, parked))
        assert await court.refused(parked.session, sent) == name.partition(" ")[0]
        await court.accepted(parked, court.signed(parked.answer()))

    place.told(story)


def test_a_requester_cannot_answer_even_with_an_approvers_key(place: ApprovalRealm):
    async def story(court: ApprovalWorld) -> None:
        await court.name("selfish", EVE)
        parked = await court.parked("selfish")
        itself = on_the_wire(court.signed(parked.answer(actor="selfish"), EVE))
        agent = on_the_wire(court.signed(parked.answer(actor="agent.selfish"), EVE))
        assert await court.refused("selfish", agent) == "APPROVER_UNKNOWN"
        while (code := await court.refused("selfish", itself)) == "APPROVER_UNKNOWN":
            await asyncio.sleep(0.2)  # A node hears of a key a moment after it was named.
        assert code == "SELF_APPROVAL"
        await court.accepted(parked, court.signed(parked.answer()))

    place.told(story)


def test_only_an_approver_can_add_an_approver(place: ApprovalRealm):
    """Whoever may publish anything."""
    mallory = Signer(b"m" * 32)

    async def story(court: ApprovalWorld) -> None:
        parked = await court.parked("usurped")
        genuine = await court.naming("mallory", mallory.public_key)
        for naming in (
            replace(genuine, key_id="", signature=""),
            replace(genuine, name="ann"),
            mallory.sign_change("court", genuine),
            ANN.sign_change("elsewhere", genuine),
        ):
            with pytest.raises(Refused) as refusal:
                await court.say(naming)
            left = (await court.facts(APPROVERS_KEY))[-1]
            assert (left["type"], left["code"]) == (
                "approval.approver_refused.v1",
                refusal.value.code,
            )
        itself = court.signed(parked.answer(actor="mallory"), mallory)
        assert await court.refused("usurped", on_the_wire(itself)) == "APPROVER_UNKNOWN"
        await court.accepted(parked, court.signed(parked.answer()))

    place.told(story)


def test_an_answer_taken_to_another_session_is_refused_there(place: ApprovalRealm):
    async def story(court: ApprovalWorld) -> None:
        parked = await court.parked("carried")
        answer = court.signed(parked.answer())
        assert await court.refused(OTHER, on_the_wire(answer)) == "APPROVAL_NOT_FOUND"
        await court.accepted(parked, answer)

    place.told(story)


# --- again, too late, and in between --------------------------------------------------------------


def test_a_replayed_answer_is_refused(place: ApprovalRealm):
    async def story(court: ApprovalWorld) -> None:
        parked = await court.parked("replayed")
        answer = court.signed(parked.answer())
        await court.accepted(parked, answer)
        for _ in range(2):
            assert await court.refused("replayed", on_the_wire(answer)) == "APPROVAL_CLOSED"

    place.told(story)


def test_a_repeated_answer_gets_the_same_receipt(place: ApprovalRealm):
    """The same command, by its id: only the first reply may have been lost."""

    async def story(court: ApprovalWorld) -> None:
        parked, message_id = await court.parked("repeated"), new_id()
        answer = court.signed(parked.answer())
        ask = partial(court.client.ask, "decide", "repeated", answer, message_id=message_id)
        first = await ask()
        await court.goes_on(parked)
        before = await court.facts("repeated")
        assert await ask() == first
        assert await court.facts("repeated") == before

    place.told(story)


def test_after_one_valid_answer_every_other_is_refused(place: ApprovalRealm):
    async def story(court: ApprovalWorld) -> None:
        parked = await court.parked("double")
        first, second = parked.answer(), parked.answer("denied", "bob")
        await court.accepted(parked, court.signed(first))
        for answer, signer in ((second, BOB), (replace(first, reason="more"), None)):
            signed = court.signed(answer, signer) if signer else court.signed(answer)
            assert await court.refused(parked.session, on_the_wire(signed)) == "APPROVAL_CLOSED"

    place.told(story)


def test_two_answers_at_once_are_one(place: ApprovalRealm):
    async def story(court: ApprovalWorld) -> None:
        parked = await court.parked("race")
        yes, no = parked.answer(), parked.answer("denied", "bob")
        asked = [
            court.client.ask("decide", parked.session, answer)
            for answer in (court.signed(yes), court.signed(no, BOB))
        ]
        said = await asyncio.gather(*asked, return_exceptions=True)
        assert len([one for one in said if isinstance(one, dict)]) == 1
        await parked.run.result(30)
        approved = isinstance(said[0], dict)
        assert court.struck().count(parked.session) == (1 if approved else 0)

    place.told(story)


@pytest.mark.parametrize("code", ["APPROVER_UNKNOWN", "INVALID_JSON"])
def test_a_flood_is_refused_and_does_not_fill_the_journal(place: ApprovalRealm, code: str):
    async def story(court: ApprovalWorld) -> None:
        parked = await court.parked(f"flood-{code.lower()}")
        for number in range(2 * REFUSALS_MAX):
            answer = replace(parked.answer(), reason=str(number))
            sent: Sent = on_the_wire(court.signed(answer, EVE))
            if code == "INVALID_JSON":
                sent = msgspec.Raw(encode_json(sent)[:-1])
            with pytest.raises(Refused, match=code):
                await court.client.ask("decide", parked.session, sent)
        kinds = [fact["type"] for fact in await court.facts(parked.session)]
        assert kinds.count("approval.answer_refused.v1") == REFUSALS_MAX
        await court.accepted(parked, court.signed(parked.answer()))

    place.told(story)


def test_an_answer_after_its_time_does_not_count(server: EmbeddedServer, tmp_path: Path):
    async def story() -> None:
        async with ApprovalWorld(server, "late", tmp_path) as court:
            await court.name_approvers()
            parked = await court.parked("late")
            ended = await parked.run.result(30)
            assert ended.error is not None
            assert "approval.timeout" in ended.error.message
            late = on_the_wire(court.signed(parked.answer()))
            assert await court.refused("late", late) == "APPROVAL_CLOSED"
            in_time = await court.parked("in-time")
            await court.accepted(in_time, court.signed(in_time.answer()))

    with ApprovalWorld(server, "late", tmp_path).node(ROOKERY_APPROVALS_TIMEOUT_MS="2000"):
        asyncio.run(story())


@pytest.mark.parametrize("number", range(2))
def test_answers_that_meet_a_crash_count_as_they_would_have(
    server: EmbeddedServer, tmp_path: Path, number: int
):
    """The node is killed with a forgery, garbage, the answer and the answer again in its inbox. The
    call may be tried again, under its key: the kill may fall between its intent and its result."""

    async def story() -> None:
        async with ApprovalWorld(server, f"crash{number}", tmp_path) as court:
            with court.node() as node:
                await court.name_approvers()
                parked = await court.parked("s", "knock")
                answer = court.signed(parked.answer())
                sent: list[Sent] = [
                    on_the_wire(replace(answer, reason="forged")),
                    msgspec.Raw(b"{"),
                    on_the_wire(answer),
                    on_the_wire(answer),
                ]
                for one in sent:
                    await court.publish("s", one)
                await asyncio.sleep(number * 0.01)
                node.kill()
            with court.node():
                assert (await parked.run.result(30)).result == "knocked s"
            assert len(set(court.knocked())) == 1
            kinds = [fact["type"] for fact in await court.facts("s")]
            for once in ("answered", "grant_issued", "grant_consumed"):
                assert kinds.count(f"approval.{once}.v1") == 1, kinds
            assert kinds.count("approval.answer_refused.v1") == 3, kinds

    asyncio.run(story())
