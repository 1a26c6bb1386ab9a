"""The request endpoint: one suite for both buses, then the faults of a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

import pytest

from rookery.bus.commands.command_messages import CODE
from rookery.bus.nats.connection import Connection, Outgoing, header_value
from rookery.bus.ports import PARTITIONS, Bus, Delivery, ReplyMessage
from rookery.bus.subjects import Subjects, partition_of
from tests.bus.deadlines import wait_until
from tests.bus.partition_owners import opened
from tests.bus.realms import JetStreamRealm, MemoryRealm, Realm, readable

ALL = frozenset(range(PARTITIONS))
MINE = "_INBOX.default.node.mine"
LARGE = b"x" * (2 << 20)


class Requester(Protocol):
    """A client of the realm."""

    async def request(self, key: str, body: bytes = b"", message_id: str = "") -> ReplyMessage:
        """Send a request with the verb ``run`` and return its reply."""

    async def send(self, key: str, body: bytes = b"") -> None:
        """Send a request without a reply subject."""

    async def listen(self, subject: str) -> list[ReplyMessage]:
        """Collect the replies on ``subject`` from now on."""


class MemoryRequester:
    def __init__(self, realm: MemoryRealm) -> None:
        self._switch = realm.server.realm("default").request_router
        self._count = 0

    async def request(self, key: str, body: bytes = b"", message_id: str = "") -> ReplyMessage:
        self._count += 1
        subject = f"_INBOX.{id(self)}.{self._count}"
        answers = await self.listen(subject)
        self._switch.request(Delivery("run", key, message_id or subject, body, reply_to=subject))
        return (await wait_until(lambda: answers))[0]

    async def send(self, key: str, body: bytes = b"") -> None:
        self._switch.request(Delivery("run", key, "no reply", body))

    async def listen(self, subject: str) -> list[ReplyMessage]:
        answers: list[ReplyMessage] = []
        self._switch.listen(subject, answers.append)
        return answers


class NatsRequester:
    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._subjects = Subjects("default")

    async def request(self, key: str, body: bytes = b"", message_id: str = "") -> ReplyMessage:
        headers = [("Nats-Msg-Id", message_id)] if message_id else []
        request = Outgoing(self._subjects.request("run", key), body, headers=headers)
        answer = await self.connection.request(request)
        return ReplyMessage(answer.subject, answer.body, header_value(answer.header, CODE.encode()))

    async def send(self, key: str, body: bytes = b"") -> None:
        assert self.connection.send([Outgoing(self._subjects.request("run", key), body)])

    async def listen(self, subject: str) -> list[ReplyMessage]:
        answers: list[ReplyMessage] = []
        await self.connection.subscribe(
            subject, lambda batch: answers.extend(ReplyMessage(m.subject, m.body) for m in batch)
        )
        return answers


@asynccontextmanager
async def requester(realm: Realm) -> AsyncIterator[Requester]:
    if isinstance(realm, MemoryRealm):
        yield MemoryRequester(realm)
        return
    assert isinstance(realm, JetStreamRealm)
    connection = Connection(realm.server.url)
    await connection.open()
    yield NatsRequester(connection)
    await connection.close()


class EchoNode:
    """A node that answers every request with its own name and the request's body."""

    def __init__(self, bus: Bus, name: bytes) -> None:
        self.bus, self.name = bus, name
        self.delivered: list[Delivery] = []

    def deliver(self, batch: list[Delivery]) -> None:
        self.delivered += batch
        self.bus.request_endpoint.reply(
            [ReplyMessage(d.reply_to, self.name + b":" + d.body) for d in batch if d.reply_to]
        )

    async def open(self, partitions: frozenset[int]) -> EchoNode:
        await self.bus.request_endpoint.open(self.deliver)
        await self.bus.request_endpoint.serve_partitions(partitions)
        return self


def test_the_owner_of_its_partition_answers_a_request(realm: Realm) -> None:
    keys = [f"key.{number}" for number in range(40)]
    left, right = frozenset(range(8)), frozenset(range(8, PARTITIONS))

    async def scenario() -> None:
        async with realm.bus() as first, realm.bus() as second, requester(realm) as client:
            await EchoNode(first, b"left").open(left)
            await EchoNode(second, b"right").open(right)
            answers = await asyncio.gather(*(client.request(key, key.encode()) for key in keys))
            assert [answer.body for answer in answers] == [
                (b"left:" if partition_of(key) in left else b"right:") + key.encode()
                for key in keys
            ]

    asyncio.run(scenario())


def test_a_request_keeps_its_id_and_gets_one_if_it_has_none(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as first, realm.bus() as second, requester(realm) as client:
            await EchoNode(first, b"forwards").open(frozenset())
            node = await EchoNode(second, b"owner").open(ALL)
            for _ in range(10):
                await client.request("s", message_id="given")
            for _ in range(10):
                await client.request("s")
            assert [d.id for d in node.delivered[:10]] == ["given"] * 10
            assert len({d.id for d in node.delivered[10:]}) == 10
            assert all(d.position is None and d.attempt == 1 for d in node.delivered)

    asyncio.run(scenario())


def test_a_request_of_an_unowned_partition_is_answered_as_unowned(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus, requester(realm) as client:
            node = await EchoNode(bus, b"").open(ALL - {partition_of("s")})
            answer = await client.request("s")
            assert answer.code == "PARTITION_UNOWNED"
            assert b'"PARTITION_UNOWNED"' in answer.body
            assert node.delivered == []

    asyncio.run(scenario())


def test_a_node_serves_exactly_the_partitions_it_named_last(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as first, realm.bus() as second, requester(realm) as client:
            here = await EchoNode(first, b"first").open(ALL)
            there = await EchoNode(second, b"second").open(frozenset())
            for owner, other in ((here, there), (there, here), (here, there)):
                await other.bus.request_endpoint.serve_partitions(frozenset())
                await owner.bus.request_endpoint.serve_partitions(ALL)
                answers = await asyncio.gather(*(client.request("s") for _ in range(10)))
                assert {answer.body for answer in answers} == {owner.name + b":"}

    asyncio.run(scenario())


def test_a_request_without_a_reply_subject_is_delivered(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as first, realm.bus() as second, requester(realm) as client:
            await EchoNode(first, b"").open(frozenset())
            node = await EchoNode(second, b"").open(ALL)
            for _ in range(10):
                await client.send("s", b"no reply")
            await wait_until(lambda: len(node.delivered) == 10)
            assert {(d.body, d.reply_to) for d in node.delivered} == {(b"no reply", "")}

    asyncio.run(scenario())


def test_a_closed_request_endpoint_delivers_nothing(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as first, realm.bus() as second, requester(realm) as client:
            closed = await EchoNode(first, b"closed").open(ALL)
            await closed.bus.request_endpoint.close()
            await EchoNode(second, b"open").open(ALL)
            assert {(await client.request("s")).body for _ in range(10)} == {b"open:"}
            assert closed.delivered == []

    asyncio.run(scenario())


def test_a_command_of_the_inbox_is_answered_on_the_subject_in_its_header(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus, requester(realm) as client:
            answers = await client.listen(MINE)
            await bus.inbox.submit("run", "s", b"", message_id="1", reply_to=MINE)
            (delivery,) = await (await opened(bus, "s")).has(1)
            bus.request_endpoint.reply(
                [ReplyMessage(delivery.reply_to, b"done"), ReplyMessage("nobody.here", b"lost")]
            )
            await wait_until(lambda: answers)
            assert [answer.body for answer in answers] == [b"done"]

    asyncio.run(scenario())


def test_a_reply_too_large_to_send_becomes_an_error_and_the_others_are_sent(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus, requester(realm) as client:
            waiting: list[Delivery] = []

            def take(batch: list[Delivery]) -> None:
                waiting.extend(batch)
                if len(waiting) == 2:
                    bodies = {b"small": b"fine", b"large": LARGE}
                    bus.request_endpoint.reply(
                        [ReplyMessage(d.reply_to, bodies[d.body]) for d in waiting]
                    )

            await bus.request_endpoint.open(take)
            await bus.request_endpoint.serve_partitions(ALL)
            large, small = await asyncio.gather(
                client.request("s", b"large"), client.request("s", b"small")
            )
            assert (small.body, small.code) == (b"fine", "")
            assert large.code == "PAYLOAD_TOO_LARGE"

    asyncio.run(scenario())


def test_a_reply_that_cannot_be_sent_in_any_form_is_dropped_alone(realm: Realm) -> None:
    """A reply subject as long as an inbox header allows is longer than the server accepts."""
    nowhere = [
        ReplyMessage("😀" * many, body) for many in (1_023, 1_024, 5_000) for body in (b"", LARGE)
    ]

    async def scenario() -> None:
        async with realm.bus() as bus, requester(realm) as client:
            answers = await client.listen(MINE)
            unheard = [await client.listen(answer.reply_to) for answer in nowhere[:1]]
            bus.request_endpoint.reply([*nowhere, ReplyMessage(MINE, b"done")])
            await wait_until(lambda: answers)
            assert unheard == [[]]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "subject",
    [
        "$JS.API.STREAM.DELETE.X",
        "$SYS.x",
        "rookery.default.ev.session.s",
        "a b",
        "a.*",
        ">",
        "a..b",
        "😀" * 1_023,
        "é" * 513,
    ],
)
def test_no_reply_is_published_on_subjects_of_the_realm_or_the_server(
    realm: Realm, subject: str
) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            await bus.inbox.submit("run", "s", b"", message_id="1", reply_to=subject)
            (delivery,) = await (await opened(bus, "s")).has(1)
            assert delivery.reply_to == ""

    asyncio.run(scenario())


def test_stock_clients_find_an_error_in_the_headers_of_nats_micro(
    jetstream: JetStreamRealm,
) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as bus, jetstream.stock() as client:

            def refuse(batch: list[Delivery]) -> None:
                codes = {"s": "GUARD_REJECTED", "t": "QUOTA_EXCEEDED"}
                bus.request_endpoint.reply(
                    [ReplyMessage(d.reply_to, b"{}", codes[d.key]) for d in batch]
                )

            await bus.request_endpoint.open(refuse)
            await bus.request_endpoint.serve_partitions(ALL)
            refused = await client.request("rookery.default.api.run.s", b"")
            assert refused.headers["Rookery-Code"] == "GUARD_REJECTED"
            assert refused.headers["Nats-Service-Error-Code"] == "400"
            assert "rules refuse" in refused.headers["Nats-Service-Error"]
            later = await client.request("rookery.default.api.run.t", b"")
            assert later.headers["Nats-Service-Error-Code"] == "503"

    asyncio.run(scenario())


def test_a_forwarded_request_keeps_its_headers(jetstream: JetStreamRealm) -> None:
    headers = {
        "Nats-Msg-Id": "id-1",
        "Content-Type": "application/msgpack",
        "Rookery-Mode": "steer",
        "Rookery-Reply": "not.for.requests",
        "traceparent": "00-4bf92f-00f067-01",
    }

    async def scenario() -> None:
        async with jetstream.bus() as first, jetstream.bus() as second, jetstream.stock() as client:
            await EchoNode(first, b"").open(frozenset())
            node = await EchoNode(second, b"").open(ALL)
            for _ in range(8):
                await client.request("rookery.default.api.run%2Enow.s", b"", headers=headers)
            for d in node.delivered:
                assert (d.verb, d.key, d.id, d.mode) == ("run.now", "s", "id-1", "steer")
                assert d.content_type == "application/msgpack"
                assert d.traceparent == "00-4bf92f-00f067-01"
                assert readable(second, d.reply_to).startswith("_INBOX.")

    asyncio.run(scenario())


@pytest.mark.parametrize("body", [b"", b"x" * 100])
def test_an_error_reply_may_be_too_large_as_well(jetstream: JetStreamRealm, body: bytes) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as bus, requester(jetstream) as client:
            answers = await client.listen(MINE)
            bus.connection.client._max_payload = 64
            refused = ReplyMessage(MINE, body, "GUARD_REJECTED")
            bus.request_endpoint.reply([refused, ReplyMessage(MINE, b"done")])
            await wait_until(lambda: answers)
            assert [answer.body for answer in answers] == [b"done"]

    asyncio.run(scenario())


def test_a_request_too_large_to_be_forwarded_is_answered_with_an_error(
    jetstream: JetStreamRealm,
) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as bus, requester(jetstream) as client:
            await EchoNode(bus, b"").open(frozenset())
            answer = await client.request("s", b"x" * (1 << 20))
            assert answer.code == "PAYLOAD_TOO_LARGE"

    asyncio.run(scenario())


def test_the_request_endpoint_serves_again_after_the_server_was_killed(
    jetstream: JetStreamRealm,
) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as first, jetstream.bus() as second:
            await EchoNode(first, b"first").open(frozenset())
            await EchoNode(second, b"second").open(ALL)
            await asyncio.to_thread(jetstream.server.kill)
            await wait_until(lambda: not first.connected and not second.connected)
            first.request_endpoint.reply([ReplyMessage("nobody", b"dropped")])
            await asyncio.to_thread(jetstream.server.start)
            await wait_until(lambda: first.connected and second.connected)
            async with requester(jetstream) as client:
                answers = await asyncio.gather(*(client.request("s") for _ in range(10)))
                assert {answer.body for answer in answers} == {b"second:"}

    asyncio.run(scenario())
