"""Which rows of the machines of peers the product reaches, and which it does not, with the reason.

Envelopes, timers, programs' calls, responders and readers move the machines here, as on a node; no
raw input does. A new row fails these tests until it is reached or listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pytest
from msgspec.structs import replace

from rookery.actors.kernel.machines import Edition
from rookery.actors.messages import HandlerEnded, WithdrawPeerCall
from rookery.actors.peers.bindings import BINDINGS
from rookery.actors.peers.effects import EnvelopeFailed
from rookery.actors.peers.stream_machine import RESERVATION_TTL_MS
from rookery.actors.peers.terminal import PeerResponseTerminalFactErrorKind
from rookery.schemas.envelope import Command, Fact
from rookery.schemas.errors import Refused
from rookery.schemas.machines.peer import DrainMode, ResponseStatus
from rookery.schemas.peers.envelope import PeerFailure
from rookery.schemas.peers.exchanges import FollowExchange, PeerDue, SendEnvelope
from rookery.schemas.peers.items import PublishEvent, Responder, SetResponder
from rookery.schemas.run import ErrorObject, RunResult, RunStatus
from tests.peers.envelope_world import NOW_MS, pair
from tests.peers.test_exchanges import Session
from tests.peers.test_item_queue import begin, operation

MACHINES: Final = {
    kind: binding.machine
    for binding in BINDINGS
    for kind in (taken.fact for taken in binding.machine.inputs.values())
}
SILENT = "only a driver outside sets silent intents of a session; a responder has its own"
DRAIN = "a drain is a state of the journal, so none ends or runs unnoticed elsewhere"
UNREACHED: Final = {
    "EnvelopeRequestSilent": SILENT,
    "EnvelopeRequestSupervisorSilent": SILENT,
    "SetPeerIngressContext": "a report that changes nothing, of a driver outside",
    "ResponseRejected": "a response that is not trusted is refused before it is a fact",
    "EnsureDrainRunning": DRAIN,
    "DrainExitedRespawnable": DRAIN,
    "NotifyDrainExitedElsewhere": DRAIN,
}
"""Rows that only raw inputs reach, and why."""


class Watched(Session):
    """A session that collects the rows of its machines."""

    rows: set[tuple[str, str]]

    def apply(self, left: Sequence[Fact]) -> None:
        super().apply([replace(fact, at_ms=NOW_MS) for fact in left])
        for fact in left:
            if (machine := MACHINES.get(type(fact))) is not None:
                self.rows.add((machine.name, fact.row))  # type: ignore[attr-defined]

    def request(self, **members: Any) -> str:
        (sent, *_) = self.put_command(SendEnvelope(to="coder@east", intent="do", **members))
        self.last: Any = sent
        return str(sent.corr_id)  # type: ignore[attr-defined]

    def timer(self, now_ms: int = NOW_MS, **due: Any) -> None:
        command = Command(verb="peer_due", key=self.session, id="timer/1", body=PeerDue(**due))
        self.apply(self.decider.decide(self.state, command, now_ms=now_ms))

    def handle(self, status: RunStatus = RunStatus.OK) -> None:
        """The run of the responder ends."""
        error = None if status is RunStatus.OK else ErrorObject(code="BROKEN", message="why")
        result = RunResult(status=status, error=error)
        item_id = self.state.serving.id
        self.put_command(HandlerEnded(item_id=item_id, run_id="run", result=result))


@pytest.fixture(scope="module")
def reached() -> set[tuple[str, str]]:
    west, east = pair()
    rows: set[tuple[str, str]] = set()
    planner, coder = Watched(west, "planner"), Watched(east, "coder")
    planner.rows = coder.rows = rows
    for story in (_envelopes, _exchanges, _streams, _drains):
        story(planner, coder)
    return rows


def _envelopes(planner: Watched, coder: Watched) -> None:
    west, east = planner.site, coder.site
    notices = ("mob.peer_added", "mob.peer_retired", "mob.peer_unwired")
    for number, notice in enumerate(notices):
        coder.put(west.send(west.request(east, intent=notice, n=500 + number)))
        terms = {"kind": "lifecycle", "lifecycle": notice, "body": None, "n": 600 + number}
        coder.put(west.send(west.message(east, **terms)))
    coder.put(west.send(west.message(east, n=700)))
    request_id = "00000000-0000-4000-8000-00000000000f"
    ack = {"kind": "ack", "in_reply_to": request_id, "body": None, "n": 701}
    coder.put(west.send(west.message(east, **ack)))
    key = east.keys.realm_key(1)
    bridge = {"intent": "supervisor.bridge", "from": "_realm", "from_key": key.public_key}
    coder.put(east.send(east.request(east, **bridge), key=key, vouch=""))
    coder.put_command(PublishEvent(source="cron", body={"at": 7}))


def _exchanges(planner: Watched, coder: Watched) -> None:
    for status in ("completed", "failed"):
        corr_id = planner.request()
        coder.take_from(planner, planner.last)
        progress = {"status": ResponseStatus.ACCEPTED, "phase": "in_progress"}
        planner.take_from(coder, coder.send(in_reply_to=corr_id, **progress))
        error = {"error": PeerFailure(code="X")} if status == "failed" else {}
        end = coder.send(in_reply_to=corr_id, status=ResponseStatus(status), **error)
        planner.take_from(coder, end)
    planner.timer(request_id=planner.request())
    planner.put_command(EnvelopeFailed(item_id=planner.request(), code="NO_ANSWER"))


def _streams(planner: Watched, coder: Watched) -> None:
    def follow(corr_id: str, **more: Any) -> None:
        planner.put_command(FollowExchange(request_id=corr_id, reader="r", **more))

    answered = planner.request(stream=True)
    coder.take_from(planner, planner.last)
    follow(answered)
    planner.take_from(coder, coder.send(in_reply_to=answered, status=ResponseStatus.COMPLETED))
    left = planner.request(stream=True)
    follow(left)
    follow(left, leave=True)
    planner.timer(NOW_MS + RESERVATION_TTL_MS + 1, stream_id=planner.request(stream=True))
    planner.put_command(WithdrawPeerCall(operation_id=planner.request(stream=True)))


def _drains(planner: Watched, coder: Watched) -> None:
    def serve(mode: DrainMode) -> None:
        coder.put_command(SetResponder(responder=Responder(code="1", mode=mode)))
        while coder.state.serving:
            coder.handle()

    def fail_three_times() -> None:
        for _ in range(3):
            planner.request()
            coder.take_from(planner, planner.last)
            coder.handle(RunStatus.RUNTIME_ERROR)

    serve(DrainMode.TIMED)
    serve(DrainMode.ATTACHED_SESSION)  # Which stops the drain of the other mode.
    coder.put_command(SetResponder())
    serve(DrainMode.PERSISTENT_HOST)
    fail_three_times()
    coder.put_command(SetResponder())


def present_rows() -> Iterator[tuple[str, str]]:
    for binding in BINDINGS:
        for row in binding.machine.transitions:
            if row.edition in (None, Edition.HEAD):
                yield binding.machine.name, row.name


def test_every_row_is_reached_by_the_product_or_listed_with_the_reason(
    reached: set[tuple[str, str]],
):
    missing = {name for machine, name in present_rows() if (machine, name) not in reached}
    assert missing == set(UNREACHED)
    assert reached <= set(present_rows())


# --- the texts of an invalid last response --------------------------------------------------------


KIND = PeerResponseTerminalFactErrorKind
ROUTE = "an address is of the roster and of a session's name, whose characters are checked before"
UNREACHED_ERRORS: Final = {
    KIND.EMPTY_ROUTE_IDENTITY: ROUTE,
    KIND.INVALID_ROUTE_IDENTITY: ROUTE,
}
OF_AGENTS: Final = (KIND.EMPTY_TRANSPORT_IDENTITY, KIND.MISSING_DISPLAY_IDENTITY)
"""Reached by the answer and by the card of an agent elsewhere: `test_agent_rules.py`."""
BLANK = " " * 36


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (KIND.EMPTY_DISPLAY_IDENTITY, {"display_name": "  "}),
        (KIND.INVALID_DISPLAY_IDENTITY, {"display_name": "co\nder"}),
        (KIND.EMPTY_CORRELATION_ID, {"in_reply_to": BLANK}),
        (KIND.INVALID_CORRELATION_ID, {"in_reply_to": "x" * 36}),
    ],
)
def test_a_program_gets_the_texts_of_the_contract(kind: KIND, given: dict[str, Any]):
    assert kind not in UNREACHED_ERRORS
    _, east = pair()
    arguments = {"peer_id": operation(9), "in_reply_to": operation(8)}
    with pytest.raises(Refused, match=kind.value):
        begin(Session(east, "coder"), 1, "send_response", **(arguments | given))


def test_every_text_is_reached_or_listed_with_the_reason():
    assert len(KIND) == 8
    assert len(UNREACHED_ERRORS) + len(OF_AGENTS) + 4 == len(KIND)
