"""Exchanges between two realms: who gets which envelope, what ends a request, and what does not.

The deciders, keys and rosters are the real ones; the test carries the envelopes.
"""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.kernel.machines import DESTROYED, HostPhase
from rookery.actors.keys.ed25519 import SigningKey
from rookery.actors.peers.effects import EnvelopeDelivered, EnvelopeFailed
from rookery.actors.peers.envelopes import sign_envelope
from rookery.actors.peers.state import DECLINES_MAX, UNANSWERED_MAX
from rookery.actors.peers.trust import peer_id_of
from rookery.schemas.commands import HandleInput
from rookery.schemas.envelope import Command, Fact
from rookery.schemas.errors import Refused
from rookery.schemas.facts import peer as facts
from rookery.schemas.machines.peer import (
    OutboundPeerRequestState,
    PeerResponseProgressProjectionPhase,
    ResponseStatus,
)
from rookery.schemas.peers.envelope import (
    OutboxEnvelope,
    PeerFailure,
    UnansweredRequest,
    read_envelope,
)
from rookery.schemas.peers.exchanges import ExchangesQuery, PeerDue, SendEnvelope, UnmatchedReason
from rookery.schemas.peers.roster import PeerKind
from tests.peers.envelope_world import HOUR_MS, NOW_MS, Inbox, Sent, Site, pair

_commands = count(1)


class Session(Inbox):
    """A session that also sends."""

    def put_command(self, body: Any, *, command_id: str = "", now_ms: int = NOW_MS) -> list[Fact]:
        name = command_id or f"c{next(_commands)}"
        command = Command(verb="send", key=self.session, id=name, body=body, reply_to="r")
        left = list(self.decider.decide(self.state, command, now_ms=now_ms))
        self.apply(left)
        return left

    def send(self, now_ms: int = NOW_MS, **members: Any) -> Fact:
        (fact,) = self.put_command(SendEnvelope(**members), now_ms=now_ms)
        return fact

    def signed(self, sent: OutboxEnvelope) -> Sent:
        """What the executor publishes."""
        keys, body = self.site.keys, sent.text.encode()
        key = keys.key_of(self.session, 1, 1)
        vouch = keys.vouch(self.session, 1, 1, NOW_MS)
        return Sent(body, sign_envelope(key, body), vouch, sent.id)

    def take_from(self, other: Session, fact: Any) -> Fact:
        """The last fact of the envelope that another session's fact has."""
        self.put(other.signed(fact.sent))
        return self.facts[-1]

    @property
    def exchanges(self) -> Any:
        command = Command(verb="exchanges", key=self.session, id="q", body=ExchangesQuery())
        return self.decider.reply(self.state, command, ())


@pytest.fixture
def two() -> tuple[Session, Session]:
    """A planner in the west and a coder in the east."""
    west, east = pair()
    return Session(west, "planner"), Session(east, "coder")


def ask(planner: Session, coder: Session, **members: Any) -> tuple[Any, str]:
    """A request that has arrived; its fact and its id."""
    terms = {"to": "coder@east", "intent": "review", "params": {"file": "x.py"}}
    fact: Any = planner.send(**(terms | members))
    coder.take_from(planner, fact)
    return fact, fact.corr_id


def test_a_request_is_answered_once_and_the_result_ends_it(two: tuple[Session, Session]):
    planner, coder = two
    sent, corr_id = ask(planner, coder)
    received = coder.facts[-1]
    assert isinstance(received, facts.RequestReceived)
    assert received.request == UnansweredRequest(
        alias="west", name="planner", intent="review", thread=corr_id, due_at_ms=sent.due_at_ms
    )
    phase = PeerResponseProgressProjectionPhase.IN_PROGRESS
    working = coder.send(in_reply_to=corr_id, status=ResponseStatus.ACCEPTED, phase=phase)
    assert isinstance(planner.take_from(coder, working), facts.ResponseProgressed)
    (listed,) = planner.exchanges.requests
    assert (listed.peer, listed.state) == ("coder@east", OutboundPeerRequestState.ACCEPTED_PROGRESS)
    done = coder.send(in_reply_to=corr_id, status=ResponseStatus.COMPLETED, result={"ok": True})
    ended = planner.take_from(coder, done)
    assert isinstance(ended, facts.ResponseEnded)
    assert ended.response is not UNSET
    assert ended.response.result == {"ok": True}
    assert planner.exchanges.requests == coder.exchanges.unanswered == ()
    with pytest.raises(Refused, match="PEER_ALREADY_REPLIED"):
        coder.send(in_reply_to=corr_id, status=ResponseStatus.COMPLETED)


def test_a_failure_has_a_code_and_a_message(two: tuple[Session, Session]):
    planner, coder = two
    _, corr_id = ask(planner, coder)
    error = PeerFailure(code="NO_TESTS", message="write some")
    failed = coder.send(in_reply_to=corr_id, status=ResponseStatus.FAILED, error=error)
    ended = planner.take_from(coder, failed)
    assert isinstance(ended, facts.ResponseEnded)
    assert ended.disposition == "Failed"
    assert ended.response is not UNSET
    assert ended.response.error == error


def test_a_message_needs_no_answer(two: tuple[Session, Session]):
    planner, coder = two
    fact = planner.send(to="coder@east", body={"any": ["json", None]})
    arrived = coder.take_from(planner, fact)
    assert isinstance(arrived, facts.EnvelopeClassified)
    assert arrived.from_peer == "planner@west"
    assert coder.exchanges.unanswered == ()


def test_envelopes_are_numbered_for_each_receiver_and_a_repeated_command_is_one(
    two: tuple[Session, Session],
):
    planner, _ = two
    sent: list[Any] = [
        planner.send(to=to, body="x") for to in ("coder@east", "coder@east", "coder")
    ]
    assert [one.sent.n for one in sent] == [1, 2, 1]
    command = SendEnvelope(to="coder@east", body="x")
    (first,) = planner.put_command(command, command_id="same")
    again = Command(verb="send", key="planner", id="same", body=command, reply_to="r")
    receipt: Any = planner.decider.reply(planner.state, again, ())
    assert receipt.id == first.sent.id  # type: ignore[attr-defined]


# --- responses that change nothing ----------------------------------------------------------------


def unmatched(session: Session, sent: Sent) -> UnmatchedReason:
    """Why a verified response changes no request."""
    before = session.exchanges.requests
    session.put(sent)
    fact = session.facts[-1]
    assert isinstance(fact, facts.ResponseUnmatched)
    assert session.exchanges.requests == before
    return fact.why


def response(coder: Session, corr_id: str, name: str = "coder", **members: Any) -> Sent:
    """A signed response that no rule of its sender has seen."""
    east, west = coder.site, Site(b"w")
    key = east.keys.key_of(name, 1, 1)
    fields = {
        "kind": "response",
        "body": None,
        "in_reply_to": corr_id,
        "status": "completed",
        "from": name,
        "from_key": key.public_key,
        "n": 1_000 + next(_commands),
    }
    return east.send(east.message(west, **(fields | members)) | {"to": "planner"})


def test_a_response_counts_only_from_the_peer_that_was_asked(two: tuple[Session, Session]):
    planner, coder = two
    _, corr_id = ask(planner, coder)
    assert unmatched(planner, response(coder, corr_id, "tester")) is UnmatchedReason.WRONG_PEER
    north = Site(b"n")
    planner.site.accept(north.realm_key, "north")
    foreign = response(Session(north, "coder"), corr_id)
    assert unmatched(planner, foreign) is UnmatchedReason.WRONG_PEER
    planner.put(response(coder, corr_id))
    assert isinstance(planner.facts[-1], facts.ResponseEnded)


NOT_ATTENDED = {"code": "PEER_NOT_ATTENDED", "message": "no such session"}
FAILED = {"status": "failed", "error": NOT_ATTENDED}


def of_realm(coder: Session, corr_id: str, **members: Any) -> Sent:
    """A response of the realm itself."""
    realm = coder.site.keys.realm_key(1)
    made = response(coder, corr_id, from_key=realm.public_key, **{"from": "_realm"}, **members)
    return coder.site.send(made.envelope, key=realm, vouch="")


def test_the_realm_of_a_peer_may_say_that_it_failed_and_nothing_else(two: tuple[Session, Session]):
    planner, coder = two
    _, corr_id = ask(planner, coder)
    assert unmatched(planner, of_realm(coder, corr_id)) is UnmatchedReason.WRONG_PEER
    planner.put(of_realm(coder, corr_id, **FAILED))
    assert isinstance(planner.facts[-1], facts.ResponseEnded)


@pytest.mark.parametrize("behind_ms", [0, 1, 1_023, 1_024, 60_000])
def test_clocks_of_a_realms_nodes_that_differ_lose_none_of_its_responses(
    two: tuple[Session, Session], behind_ms: int
):
    """Their numbers follow these clocks, and may be equal, or further apart than the window."""
    planner, coder = two
    (_, first), (_, second) = ask(planner, coder), ask(planner, coder)
    sent = [
        of_realm(coder, corr_id, n=number, **FAILED)
        for corr_id, number in ((first, NOW_MS), (second, NOW_MS - behind_ms))
    ]
    for one in sent:
        planner.put(one)
        assert isinstance(planner.facts[-1], facts.ResponseEnded)
    for one in sent:
        assert planner.code(one) == "ENVELOPE_REPLAYED"


def test_a_realm_that_was_not_asked_cannot_repeat_its_response(two: tuple[Session, Session]):
    planner, coder = two
    _, corr_id = ask(planner, coder)
    north = Site(b"n")
    planner.site.accept(north.realm_key, "north")
    foreign = of_realm(Session(north, "coder"), corr_id, n=NOW_MS, **FAILED)
    assert unmatched(planner, foreign) is UnmatchedReason.WRONG_PEER
    assert planner.code(foreign) == "ENVELOPE_REPLAYED"


def test_late_double_and_unknown_responses_are_on_record(two: tuple[Session, Session]):
    planner, coder = two
    _, first = ask(planner, coder)
    planner.put(response(coder, first))
    assert unmatched(planner, response(coder, first)) is UnmatchedReason.DUPLICATE
    _, second = ask(planner, coder)
    due = Command(verb="peer_due", key="planner", id="timer/x/1", body=PeerDue(request_id=second))
    planner.apply(planner.decider.decide(planner.state, due, now_ms=NOW_MS))
    assert isinstance(planner.facts[-1], facts.RequestTimedOut)
    assert planner.decider.decide(planner.state, due, now_ms=NOW_MS) == ()
    assert unmatched(planner, response(coder, second)) is UnmatchedReason.LATE
    unknown = "00000000-0000-4000-8000-00000000000f"
    assert unmatched(planner, response(coder, unknown)) is UnmatchedReason.UNKNOWN


def test_only_a_timer_ends_a_request_for_its_time(two: tuple[Session, Session]):
    planner, coder = two
    _, corr_id = ask(planner, coder)
    with pytest.raises(Refused, match="GUARD_REJECTED"):
        planner.put_command(PeerDue(request_id=corr_id))


# --- requests that are declined -------------------------------------------------------------------


def declined(coder: Session, sent: Sent) -> str:
    """The code of a declined request, which begins no exchange."""
    before = coder.exchanges.unanswered
    coder.put(sent)
    fact = coder.facts[-1]
    assert isinstance(fact, facts.RequestDeclined)
    assert coder.exchanges.unanswered == before
    return fact.code


def test_a_declined_request_is_answered_at_once(two: tuple[Session, Session]):
    planner, coder = two
    coder.site.accept(planner.site.realm_key, "west", intents=("ask", "rev*"))
    sent: Any = planner.send(to="coder@east", intent="pay")
    assert declined(coder, planner.signed(sent.sent)) == "PEER_INTENT_NOT_ALLOWED"
    ended = planner.take_from(coder, coder.facts[-1])
    assert isinstance(ended, facts.ResponseEnded)
    assert ended.response is not UNSET
    assert ended.response.error is not UNSET
    assert ended.response.error.code == "PEER_INTENT_NOT_ALLOWED"
    ask(planner, coder)
    assert len(coder.exchanges.unanswered) == 1


def test_an_id_that_another_peer_uses_and_a_cycle(two: tuple[Session, Session]):
    planner, coder = two
    west, east = planner.site, coder.site
    _, corr_id = ask(planner, coder)
    tester = {"from": "tester", "from_key": west.keys.key_of("tester", 1, 1).public_key}
    same_id = west.send(west.request(east, id=corr_id, **tester))
    assert declined(coder, same_id) == "PEER_REQUEST_ID_TAKEN"
    path = [peer_id_of(east.realm_key, "coder")]
    assert declined(coder, west.send(west.request(east, path=path, n=500))) == "PEER_CYCLE"


def test_the_bridge_of_a_supervisor_is_the_realms_own(two: tuple[Session, Session]):
    planner, coder = two
    west, east = planner.site, coder.site
    bridge = {"intent": "supervisor.bridge"}
    foreign = west.send(west.request(east, **bridge))
    assert declined(coder, foreign) == "PEER_INTENT_NOT_ALLOWED"
    key = east.keys.realm_key(1)
    own = east.request(east, **bridge, **{"from": "_realm", "from_key": key.public_key})
    coder.put(east.send(own, key=key, vouch=""))
    assert isinstance(coder.facts[-1], facts.RequestReceived)


def test_a_session_owes_a_bounded_number_of_responses(two: tuple[Session, Session]):
    planner, coder = two
    waiting = UnansweredRequest(alias="w", name="p", intent="i", thread="t", due_at_ms=1)
    for number in range(UNANSWERED_MAX):
        coder.apply(
            [facts.RequestReceived(row="RequestReceived", corr_id=str(number), request=waiting)]
        )
    sent: Any = planner.send(to="coder@east", intent="review")
    assert declined(coder, planner.signed(sent.sent)) == "PEER_QUEUE_FULL"


def test_so_many_declines_a_second_are_on_record_and_the_rest_is_only_counted(
    two: tuple[Session, Session],
):
    planner, coder = two
    coder.site.accept(planner.site.realm_key, "west", intents=("ask",))
    for _ in range(DECLINES_MAX):
        sent: Any = planner.send(to="coder@east", intent="pay")
        declined(coder, planner.signed(sent.sent))
    sent = planner.send(to="coder@east", intent="pay")
    assert coder.code(planner.signed(sent.sent)) == "PEER_INTENT_NOT_ALLOWED"
    assert coder.code(planner.signed(sent.sent), NOW_MS + 1_000) == ""


@pytest.mark.parametrize("phase", [HostPhase.RETIRED, HostPhase.STOPPED, DESTROYED])
def test_a_session_that_takes_nothing_leaves_no_fact(
    two: tuple[Session, Session], phase: HostPhase
):
    planner, coder = two
    host = replace(coder.state.host, phase=phase)
    coder.state = coder.decider.with_host(coder.state, host)
    sent: Any = planner.send(to="coder@east", intent="review")
    assert coder.code(planner.signed(sent.sent)) == "PEER_NOT_ATTENDED"


# --- what a session may send ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "code"),
    [
        ({"body": "x"}, "INVALID_ARGUMENT"),
        ({"to": "coder@east"}, "INVALID_ARGUMENT"),
        ({"intent": "review"}, "INVALID_ARGUMENT"),
        ({"to": "coder@south", "body": "x"}, "PEER_UNKNOWN"),
        ({"to": "coder@gone", "body": "x"}, "PEER_REVOKED"),
        ({"to": "coder@east", "status": ResponseStatus.COMPLETED}, "INVALID_ARGUMENT"),
        (
            {"in_reply_to": "00000000-0000-4000-8000-00000000000f", "status": "completed"},
            "PEER_REQUEST_NOT_FOUND",
        ),
        ({"to": "coder@east", "body": "x" * (300 << 10)}, "PAYLOAD_TOO_LARGE"),
        ({"to": "coder@east", "body": [[[]]] * 2 + [0]}, ""),
    ],
    ids=str,
)
def test_what_a_session_may_send(two: tuple[Session, Session], members: Any, code: str):
    planner, _ = two
    gone = Site(b"g")
    planner.site.accept(gone.realm_key, "gone")
    planner.site.revoke("gone")
    if not code:
        planner.send(**members)
        return
    with pytest.raises(Refused) as caught:
        planner.send(**members)
    assert caught.value.code == code


def test_a_client_has_one_address_and_its_own_key_instead_of_a_realm(
    two: tuple[Session, Session],
):
    planner, _ = two
    bob = SigningKey(b"B" * 32).public_key
    planner.site.accept(bob, "bob", kind=PeerKind.CLIENT, names=("bob",))
    sent: Any = planner.send(to="bob@bob", intent="confirm").sent
    assert (sent.is_client, sent.to, read_envelope(sent.text.encode()).to_realm_key) == (
        True,
        "bob",
        bob,
    )
    with pytest.raises(Refused, match="the client bob is bob@bob"):
        planner.send(to="eve@bob", intent="confirm")


def test_a_deeply_nested_body_is_refused_before_it_is_on_record(two: tuple[Session, Session]):
    body: Any = None
    for _ in range(80):
        body = [body]
    with pytest.raises(Refused, match="nested deeper"):
        two[0].send(to="coder@east", body=body)


# --- the outbox -----------------------------------------------------------------------------------


def test_an_envelope_is_to_be_delivered_until_an_inbox_has_it(two: tuple[Session, Session]):
    planner, _ = two
    sent: Any = planner.send(to="coder@east", intent="review")
    (fact,) = planner.facts
    deliver, timer = planner.decider.effects(planner.state, fact)
    assert planner.decider.pending_effects(planner.state, "planner")[0] == replace(
        deliver, session="planner"
    )
    assert timer.key == f"timer/{sent.corr_id}"
    planner.put_command(EnvelopeDelivered(item_id=sent.corr_id))
    assert planner.exchanges.undelivered == 0
    assert [type(one) for one in planner.decider.effects(planner.state, fact)] == [type(timer)]
    assert planner.put_command(EnvelopeDelivered(item_id=sent.corr_id)) == []


def test_what_no_inbox_took_ends_its_request_or_is_on_record(two: tuple[Session, Session]):
    planner, _ = two
    request: Any = planner.send(to="coder@east", intent="review")
    (failed,) = planner.put_command(EnvelopeFailed(item_id=request.corr_id, code="NO_ANSWER"))
    assert isinstance(failed, facts.RequestSendFailed)
    assert failed.code == "NO_ANSWER"
    message: Any = planner.send(to="coder@east", body="x")
    (lost,) = planner.put_command(EnvelopeFailed(item_id=message.sent.id, code="NO_ANSWER"))
    assert isinstance(lost, facts.MessageFailed)
    assert planner.exchanges.undelivered == 0
    assert planner.exchanges.requests == ()


def test_a_new_generation_of_the_session_forgets_no_number_and_no_envelope(
    two: tuple[Session, Session],
):
    planner, _ = two
    planner.send(to="coder@east", body="x")
    planner.state = planner.decider.begin_generation(planner.state, 2)
    assert planner.exchanges.undelivered == 1
    second: Any = planner.send(to="coder@east", body="y", now_ms=NOW_MS + HOUR_MS)
    assert second.sent.n == 2


@pytest.mark.parametrize("on", ["response_terminal", "request_timed_out", "request_received"])
def test_no_client_moves_an_exchange_of_a_node_by_a_raw_input(
    two: tuple[Session, Session], on: str
):
    planner, coder = two
    _, corr_id = ask(planner, coder)
    params = {"corr_id": corr_id}
    raw = Command(verb="peers", key="planner", id="r", body=HandleInput(input=on, params=params))
    with pytest.raises(Refused, match="by envelopes that it has verified"):
        planner.decider.decide(planner.state, raw, now_ms=NOW_MS)
    assert len(planner.exchanges.requests) == 1
