"""The queue of a session's items: who gets which, and what a call does that begins twice."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.kernel.machines import HostPhase
from rookery.actors.messages import BeginPeerCall, HandlerEnded, WithdrawPeerCall
from rookery.actors.peers.state import QUEUED_ITEMS_MAX
from rookery.actors.peers.trust import peer_id_of
from rookery.schemas.errors import Refused
from rookery.schemas.facts import peer as facts
from rookery.schemas.peers.items import (
    IntentTerms,
    ItemKind,
    PeerItem,
    PublishEvent,
    Responder,
    SetResponder,
)
from rookery.schemas.run import RunResult
from tests.peers.envelope_world import NOW_MS, pair
from tests.peers.test_exchanges import Session, ask

DAY_MS = 86_400_000


@pytest.fixture
def two() -> tuple[Session, Session]:
    west, east = pair()
    return Session(west, "planner"), Session(east, "coder")


def operation(number: int) -> str:
    return f"00000000-0000-7000-8000-{number:012x}"


def begin(session: Session, number: int, name: str, item: str = "", **given: Any) -> list[Any]:
    """The facts of a program's call."""
    until_ms = NOW_MS + DAY_MS if name == "send_request" else 0
    call = BeginPeerCall(
        operation_id=operation(number),
        run_id="run",
        name=name,
        arguments=given,
        until_ms=until_ms,
        item_id=item,
    )
    return session.put_command(call)


def send(planner: Session, coder: Session, body: str) -> str:
    """The id of a message that has arrived."""
    fact: Any = planner.send(to="coder@east", body=body)
    coder.take_from(planner, fact)
    return str(fact.sent.id)


def assigned(found: list[Any]) -> list[tuple[str, Any]]:
    return [
        (one.operation_id, one.item["body"]) for one in found if isinstance(one, facts.ItemAssigned)
    ]


def test_a_call_that_begins_twice_sends_once_under_its_own_id(two: tuple[Session, Session]):
    planner, _ = two
    terms = {"to": "coder@east", "intent": "review"}
    (sent,) = begin(planner, 1, "send_request", **terms)
    assert sent.corr_id == sent.sent.id == operation(1)
    assert begin(planner, 1, "send_request", **terms) == []
    (message,) = begin(planner, 2, "send_message", to="coder@east", body="hello")
    assert message.operation_id == message.sent.id == operation(2)
    assert begin(planner, 2, "send_message", to="coder@east", body="hello") == []


def test_calls_that_were_awaited_together_begin_once_each(two: tuple[Session, Session]):
    """A node that dies before its turn has their ends on record begins all of them again."""
    planner, coder = two
    calls = range(1, 501)
    for number in calls:
        begin(planner, number, "send_message", to="coder@east", body=number)
    for number in calls[:40]:
        begin(coder, number, "receive")
    for number in calls[:40]:
        send(planner, coder, str(number))
    send(planner, coder, "for a later call")
    for number in calls:
        assert begin(planner, number, "send_message", to="coder@east", body=number) == []
    for number in calls[:40]:
        assert begin(coder, number, "receive") == []
    assert [item.body for item in coder.state.queue] == ["for a later call"]


def test_items_wait_in_order_for_the_receivers_that_fit(two: tuple[Session, Session]):
    planner, coder = two
    for body in ("first", "second"):
        send(planner, coder, body)
    assert assigned(begin(coder, 1, "receive", kind="request")) == []
    assert assigned(begin(coder, 2, "receive")) == [(operation(2), "first")]
    assert assigned(begin(coder, 3, "receive")) == [(operation(3), "second")]
    assert assigned(begin(coder, 4, "receive", from_="tester@west")) == []
    _, corr_id = ask(planner, coder)
    got = coder.facts[-1]
    assert isinstance(got, facts.ItemAssigned)
    assert (got.operation_id, got.item_id) == (operation(1), corr_id)


def test_a_dropped_receiver_returns_what_it_had_got_to_the_front(two: tuple[Session, Session]):
    planner, coder = two
    begin(coder, 1, "receive")
    item = send(planner, coder, "first")
    send(planner, coder, "second")
    (returned,) = coder.put_command(WithdrawPeerCall(operation_id=operation(1)))
    assert returned.item_id == item
    assert coder.put_command(WithdrawPeerCall(operation_id=operation(1))) == []
    assert assigned(begin(coder, 2, "receive")) == [(operation(2), "first")]


def test_a_full_queue_declines_requests_and_drops_messages_on_record(
    two: tuple[Session, Session],
):
    planner, coder = two
    item = PeerItem(id="i", kind=ItemKind.MESSAGE, from_="x@west", thread="t", at_ms=NOW_MS)
    full = (item,) * QUEUED_ITEMS_MAX
    coder.state = replace(coder.state, queue=full)
    message = send(planner, coder, "more")
    dropped = coder.facts[-1]
    assert isinstance(dropped, facts.ItemDropped)
    assert dropped.item_id == message
    sent: Any = planner.send(to="coder@east", intent="review")
    assert isinstance(coder.take_from(planner, sent), facts.RequestDeclined)
    with pytest.raises(Refused, match="PEER_QUEUE_FULL"):
        coder.put_command(PublishEvent(source="cron"))
    assert len(coder.state.queue) == QUEUED_ITEMS_MAX


def test_what_a_client_has_answered_no_program_gets(two: tuple[Session, Session]):
    planner, coder = two
    _, corr_id = ask(planner, coder)
    assert [one.id for one in coder.state.queue] == [corr_id]
    coder.send(in_reply_to=corr_id, status="completed")
    assert coder.state.queue == ()


def test_a_program_responds_only_to_the_peer_that_has_asked(two: tuple[Session, Session]):
    planner, coder = two
    _, corr_id = ask(planner, coder)
    asked_by = peer_id_of(planner.site.realm_key, "planner")
    for peer_id in (peer_id_of(planner.site.realm_key, "tester"), operation(9)):
        with pytest.raises(Refused, match="PEER_REQUEST_NOT_FOUND"):
            begin(coder, 1, "send_response", peer_id=peer_id, in_reply_to=corr_id)
    (replied,) = begin(coder, 1, "send_response", peer_id=asked_by, in_reply_to=corr_id)
    assert (replied.corr_id, replied.operation_id) == (corr_id, operation(1))


def test_a_responder_gets_one_item_after_the_other_and_its_program_may_reply_itself(
    two: tuple[Session, Session],
):
    planner, coder = two
    responder = Responder(code="1", intents={"review": IntentTerms()})
    coder.put_command(SetResponder(responder=responder))
    _, first = ask(planner, coder)
    _, second = ask(planner, coder)
    assert coder.state.serving is not UNSET
    assert (coder.state.serving.id, [one.id for one in coder.state.queue]) == (first, [second])
    coder.send(in_reply_to=first, status="completed", result="by itself")
    ended = HandlerEnded(item_id=first, run_id="r", result=RunResult(result="ignored"))
    kinds = [type(one) for one in coder.put_command(ended)]
    assert kinds == [facts.ItemHandled, facts.ItemAssigned]
    assert coder.put_command(ended) == []
    found = coder.put_command(HandlerEnded(item_id=second, run_id="r", result=RunResult(result=2)))
    assert [type(one) for one in found] == [facts.ResponseReplied, facts.ItemHandled]


def test_a_question_leaves_its_request_open_for_a_message_of_the_same_peer(
    two: tuple[Session, Session],
):
    planner, coder = two
    coder.put_command(SetResponder(responder=Responder(code="1")))
    _, corr_id = ask(planner, coder)
    question = RunResult(result={"input_required": "Which file?"})
    asked, handled = coder.put_command(HandlerEnded(item_id=corr_id, run_id="1", result=question))
    assert (type(asked), type(handled)) == (facts.ProgressSent, facts.ItemHandled)
    planner.take_from(coder, asked)
    assert corr_id in planner.state.requests

    message: Any = planner.send(to="coder@east", body="x.py", in_reply_to=corr_id)
    coder.take_from(planner, message)
    item_id = str(message.sent.id)
    answer = HandlerEnded(item_id=item_id, run_id="2", result=RunResult(result="read"))
    replied, _ = coder.put_command(answer)
    assert (type(replied), replied.corr_id) == (facts.ResponseReplied, corr_id)
    planner.take_from(coder, replied)
    assert corr_id not in planner.state.requests


def test_a_responder_ends_with_its_session_once_its_last_item_is_handled(
    two: tuple[Session, Session],
):
    planner, coder = two
    coder.put_command(SetResponder(responder=Responder(code="1")))
    _, first = ask(planner, coder)
    ask(planner, coder)
    retired = replace(coder.state.host, phase=HostPhase.RETIRED)
    coder.state = coder.decider.with_host(coder.state, retired)
    left = coder.put_command(HandlerEnded(item_id=first, run_id="r", result=RunResult(result=1)))
    assert [type(one) for one in left[1:]] == [facts.ItemHandled, facts.DrainExitNotified]
    assert left[-1].reason == "SessionShutdown"


def test_a_request_names_those_that_wait_for_it_up_to_a_limit(two: tuple[Session, Session]):
    planner, coder = two
    coder.put_command(SetResponder(responder=Responder(code="1")))
    _, corr_id = ask(planner, coder)
    (sent,) = begin(coder, 1, "send_request", corr_id, to="planner@west", intent="again")
    assert peer_id_of(coder.site.realm_key, "coder") in sent.sent.text
    assert coder.state.serving is not UNSET
    deep = PeerItem(
        id=corr_id,
        kind=ItemKind.REQUEST,
        from_="planner@west",
        thread=corr_id,
        at_ms=NOW_MS,
        path=tuple(operation(number) for number in range(16)),
    )
    coder.state = replace(coder.state, serving=deep)
    with pytest.raises(Refused, match="PEER_TOO_DEEP"):
        begin(coder, 2, "send_request", corr_id, to="planner@west", intent="again")


def test_every_item_of_twenty_dropped_receivers_is_returned(two: tuple[Session, Session]):
    """A program may drop many calls that have got their items in the same moment."""
    planner, coder = two
    calls = range(1, 21)
    for number in calls:
        begin(coder, number, "receive")
    for number in calls:
        send(planner, coder, str(number))
    for number in calls:
        coder.put_command(WithdrawPeerCall(operation_id=operation(number)))
    assert {item.body for item in coder.state.queue} == {str(number) for number in calls}


def test_no_item_of_another_peer_under_the_same_id_displaces_one(two: tuple[Session, Session]):
    planner, coder = two
    west, east = planner.site, coder.site
    tester = {"from": "tester", "from_key": west.keys.key_of("tester", 1, 1).public_key}
    message = send(planner, coder, "genuine")
    same_id = west.send(west.message(east, id=message, **tester))
    assert coder.code(same_id) == "ENVELOPE_REPLAYED"
    _, corr_id = ask(planner, coder)
    coder.put(west.send(west.request(east, id=corr_id, n=7, **tester)))
    declined: Any = coder.facts[-1]
    assert declined.code == "PEER_REQUEST_ID_TAKEN"
    assert [item.from_ for item in coder.state.queue] == ["planner@west"] * 2
    begin(coder, 1, "receive", kind="request")
    begin(coder, 2, "receive")
    assert coder.state.queue == ()
    coder.put(west.send(west.request(east, id=corr_id, n=8, **tester)))
    assert coder.state.queue == (), "the request is received, and not answered yet"
