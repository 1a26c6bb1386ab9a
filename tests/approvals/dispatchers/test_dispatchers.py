"""The inbox dispatcher, and the service dispatcher with a service on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from rookery.actors.approvals.dispatchers.dispatchers import InboxDispatcher, ServiceDispatcher
from rookery.actors.approvals.dispatchers.protocol import (
    Cancelled,
    Decision,
    DispatchResult,
    Pending,
    TimedOut,
    Unavailable,
)
from rookery.bus.nats.connection import Connection, Message, Outgoing, header_value
from rookery.bus.server.server import EmbeddedServer
from rookery.bus.subjects import Subjects
from rookery.bus.workers.external_service import NatsExternalService
from rookery.schemas.approvals.dispatch import ApprovalDispatch
from rookery.schemas.approvals.records import Approved, Denied
from rookery.schemas.errors import Refused
from rookery.schemas.seed.refs import SourceKind, SourceRef
from tests.approvals.dispatchers.dispatch_fixtures import ANSWER, ASKED_ID, REQUEST, TERMS, decided

ANN = SourceRef.new("ann", SourceKind.USER)
SUBJECT = "service.default.night-shift"
PENDING = b'{"outcome":"pending"}'
Says = Callable[[Message], bytes | None]


class Approver:
    """An external service that records its requests."""

    def __init__(self, connection: Connection, says: Says) -> None:
        self._connection, self._says = connection, says
        self.asked: list[Message] = []

    async def open(self) -> None:
        await self._connection.subscribe(SUBJECT, self._take)
        await self._connection.client.flush()

    def _take(self, messages: list[Message]) -> None:
        for message in messages:
            self.asked.append(message)
            if (said := self._says(message)) is not None:
                self._connection.send([Outgoing(message.reply, said)])


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Connection]:
    connection = Connection(url)
    await connection.open()
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def asking(url: str, silence_s_max: float) -> AsyncIterator[ServiceDispatcher]:
    async with connected(url) as connection:
        service = NatsExternalService(connection, Subjects("default"), SUBJECT)
        yield ServiceDispatcher(service, "default", silence_s_max=silence_s_max)


def dispatched(
    url: str, says: Says, silence_s_max: float = 10.0
) -> tuple[DispatchResult, Approver]:
    """The outcome of a dispatch to a service with this reply."""

    async def ask() -> tuple[DispatchResult, Approver]:
        async with connected(url) as connection, asking(url, silence_s_max) as dispatcher:
            approver = Approver(connection, says)
            await approver.open()
            return await dispatcher.dispatch(REQUEST, TERMS), approver

    return asyncio.run(ask())


def test_the_inbox_dispatcher_leaves_the_request_pending():
    assert asyncio.run(InboxDispatcher().dispatch(REQUEST, TERMS)) == Pending()


def test_a_service_gets_the_request_without_arguments(server: EmbeddedServer):
    came, approver = dispatched(server.admin_url, lambda _: PENDING)
    assert came == Pending()
    (message,) = approver.asked
    asked = msgspec.json.decode(message.body)
    assert asked["request"]["redacted_args_summary"] == "one file"
    assert {name: asked[name] for name in ("realm", "approval_id", "due_ms")} == {
        "realm": "default",
        "approval_id": "s.call.2",
        "due_ms": 9_000,
    }
    assert set(asked) == set(ApprovalDispatch.__struct_fields__)
    assert header_value(message.header, b"Nats-Msg-Id") == ASKED_ID


def test_a_decision_comes_with_the_answer_as_it_was_signed(server: EmbeddedServer):
    came, _ = dispatched(server.admin_url, lambda _: decided())
    assert came == Decision(Approved(actor_ref=ANN), ANSWER)
    no = msgspec.structs.replace(ANSWER, decision="denied")
    came, _ = dispatched(server.admin_url, lambda _: decided(no))
    denial = Denied(reason_code="approval.denied", actor_ref=ANN)
    assert came == Decision(denial, no)


def test_an_answer_under_the_requesters_name_counts_as_the_requesters(server: EmbeddedServer):
    """The broker therefore sees that requester and approver are the same, and denies."""
    itself = msgspec.structs.replace(ANSWER, actor="agent.s")
    came, _ = dispatched(server.admin_url, lambda _: decided(itself))
    assert came == Decision(Approved(actor_ref=REQUEST.source), itself)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (b'{"outcome":"timed_out"}', TimedOut()),
        (b'{"outcome":"cancelled"}', Cancelled()),
        (b'{"outcome":"unavailable","reason_code":"night.shift"}', Unavailable("night.shift")),
        (b'{"outcome":"unavailable"}', Unavailable("approval.dispatcher_unavailable")),
        (
            b'{"outcome":"unavailable","reason_code":"<b>"}',
            Unavailable("approval.dispatcher_unavailable"),
        ),
    ],
)
def test_a_service_may_reply_without_a_decision(
    server: EmbeddedServer, said: bytes, meant: DispatchResult
):
    assert dispatched(server.admin_url, lambda _: said)[0] == meant


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"yes",
        b"\xff",
        b'{"outcome":"approved"}',
        b'{"outcome":"pending","approved":true}',
        decided(None),
        decided(msgspec.structs.replace(ANSWER, decision="Approved")),
        decided(msgspec.structs.replace(ANSWER, decision="")),
        decided(msgspec.structs.replace(ANSWER, actor="")),
    ],
)
def test_a_malformed_reply_is_no_decision(server: EmbeddedServer, said: bytes):
    with pytest.raises(Refused):
        dispatched(server.admin_url, lambda _: said)


def test_a_silent_or_missing_service_is_unavailable(server: EmbeddedServer):
    nobody = Unavailable("service.no_answer")
    assert dispatched(server.admin_url, lambda _: None, 0.3)[0] == nobody

    async def ask() -> DispatchResult:
        async with asking(server.admin_url, 0.3) as dispatcher:
            return await dispatcher.dispatch(REQUEST, TERMS)

    assert asyncio.run(ask()) == nobody


def test_a_dispatcher_waits_for_a_service_that_is_starting(server: EmbeddedServer):
    async def ask() -> DispatchResult:
        async with (
            connected(server.admin_url) as connection,
            asking(server.admin_url, 10) as dispatcher,
        ):
            waiting = asyncio.create_task(dispatcher.dispatch(REQUEST, TERMS))
            await asyncio.sleep(0)
            await Approver(connection, lambda _: PENDING).open()
            return await waiting

    assert asyncio.run(ask()) == Pending()


def test_after_an_outage_a_dispatch_is_repeated_under_the_same_id(tmp_path: Path):
    async def ask(server: EmbeddedServer) -> None:
        async with (
            connected(server.admin_url) as connection,
            asking(server.admin_url, 20) as dispatcher,
        ):
            said: list[bytes] = []
            approver = Approver(connection, lambda _: said[0] if said else None)
            await approver.open()
            waiting = asyncio.create_task(dispatcher.dispatch(REQUEST, TERMS))
            while not approver.asked:
                await asyncio.sleep(0.01)
            said.append(decided())
            await asyncio.to_thread(server.restart)
            assert isinstance(await waiting, Decision)
            ids = {header_value(m.header, b"Nats-Msg-Id") for m in approver.asked}
            assert ids == {ASKED_ID}
            assert len(approver.asked) > 1

    with EmbeddedServer(tmp_path / "store", admin=True) as server:
        asyncio.run(ask(server))


@pytest.mark.parametrize(
    "subject", ["", "a b", "approvers.*", "approvers.>", "rookery.default.cmd.run.s", "$JS.API.x"]
)
def test_a_service_has_its_own_subject(server: EmbeddedServer, subject: str):
    with pytest.raises(Refused):
        NatsExternalService(Connection(server.admin_url), Subjects("default"), subject)
