"""A client cannot steer what the server publishes into a stream of the realm.

The server sends the ack of a publish to any reply subject, without a check of permissions. Every
subject that only nodes write has a secret token, so no client can name one.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.nats import Outgoing
from rookery.bus.ports import Delivery, ReplyMessage, Timer
from rookery.bus.subjects import Subjects
from rookery.schemas.envelope import EntityId
from tests.bus.partition_owners import ALL, Worker
from tests.bus.realms import JetStreamRealm, soon

ROOT = "rookery.default"
BUCKETS = Subjects("default").buckets
FORMER = (
    f"{ROOT}.w.node.x.node.x",
    f"{ROOT}.w.3.1.session.a",
    f"{ROOT}.ev.approval._approvers",
    f"{ROOT}.own.3.approval_due.s",
    f"{ROOT}.fired.3.approval_due.s",
    f"{ROOT}.timer.x",
    f"{ROOT}.dead.run.s",
    f"{ROOT}.peer.x",
    *(f"$KV.{bucket}.partition%2E3" for bucket in BUCKETS),
)
"""The subjects that streams and nodes listened to before format 3."""


async def steered(client: Any, *targets: str) -> None:
    """Submit a command for each target, whose ack the server sends there; return when the server
    has sent them all."""
    for target in targets:
        await client.publish(f"{ROOT}.cmd.run.s", b"{}", reply=target)
    await client.jetstream().publish(f"{ROOT}.cmd.run.s", b"{}")


async def ends_of(bus: JetStreamBus) -> dict[str, int]:
    """The last sequence of every stream but the inbox, which has the commands."""
    names = [spec.name for spec in bus.specs() if spec.name != bus.subjects.inbox_stream]
    infos = [await bus.connection.api(f"STREAM.INFO.{name}") for name in names]
    return {info["config"]["name"]: info["state"]["last_seq"] for info in infos}


def test_an_ack_steered_to_a_former_subject_reaches_no_stream_and_no_node(
    jetstream: JetStreamRealm,
) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as bus, jetstream.stock() as client:
            requests: list[Delivery] = []
            await bus.request_endpoint.open(requests.extend)
            await bus.request_endpoint.serve_partitions(frozenset(ALL))
            worker = await Worker(bus).open(ALL)
            honest = await client.subscribe(client.new_inbox())
            before = await ends_of(bus)
            await steered(client, *FORMER, honest.subject)
            assert b'"stream"' in (await honest.next_msg()).data
            commands = await worker.has(len(FORMER) + 2)
            assert await ends_of(bus) == before
            assert {delivery.verb for delivery in commands} == {"run"}
            assert not requests

    asyncio.run(scenario())


def secret_subjects(subjects: Subjects) -> dict[str, str]:
    """For each stream, a subject that a node writes to."""
    return {
        subjects.journal_stream: subjects.append_of_node(EntityId("node", "x")),
        subjects.timers_stream: subjects.timer("x"),
        subjects.dead_stream: subjects.dead_letter("run", "s"),
        subjects.peers_stream: subjects.node_written("peer").replace(">", "x"),
    } | {f"KV_{bucket}": subjects.bucket_write(bucket, "x") for bucket in subjects.buckets}


def test_the_token_alone_keeps_an_ack_out(jetstream: JetStreamRealm) -> None:
    """The control: the same ack reaches every stream under a subject with the token."""

    async def scenario() -> None:
        async with jetstream.bus() as bus, jetstream.stock() as client:
            subjects = await jetstream.node_subjects()
            secret, before = secret_subjects(subjects), await ends_of(bus)
            assert secret.keys() == before.keys()

            async def all_written() -> bool:
                now = await ends_of(bus)
                return all(now[name] > before[name] for name in now)

            await steered(client, *secret.values())
            await soon(all_written)

    asyncio.run(scenario())


@pytest.mark.parametrize("subject", FORMER)
def test_no_stream_takes_a_message_on_a_former_subject(
    jetstream: JetStreamRealm, subject: str
) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as bus, jetstream.stock() as client:
            before = await ends_of(bus)
            await client.publish(subject, b"[]")
            await client.flush()
            assert await ends_of(bus) == before

    asyncio.run(scenario())


def test_no_stream_of_a_realm_listens_to_more_than_commands_and_secrets(
    jetstream: JetStreamRealm,
) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as bus:
            terms = set((await bus.journal._terms.current()).values())
            secrets = {bus.subjects.node_token, *terms}
            for name in (await jetstream.api("STREAM.NAMES"))["streams"]:
                config = (await bus.connection.api(f"STREAM.INFO.{name}"))["config"]
                open_subjects = [
                    subject
                    for subject in config["subjects"]
                    if not any(secret in subject for secret in secrets)
                ]
                commands = [f"{ROOT}.cmd.*.*"] if name == bus.subjects.inbox_stream else []
                assert open_subjects == commands, name

    asyncio.run(scenario())


def test_a_dead_letter_and_a_timer_show_no_token_to_their_readers(
    jetstream: JetStreamRealm,
) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as bus:
            token = bus.subjects.node_token
            await bus.inbox.dead_letter(Delivery("run", "s", "1", b""), "NODE_FAILED", "")
            await bus.timers.arm(
                Timer(id="late", due_ms=4_102_444_800_000, verb="wake", key="s", body=b"")
            )
            for stream in (bus.subjects.dead_stream, bus.subjects.timers_stream):
                query = {"subjects_filter": ">"}
                info = await bus.connection.api(f"STREAM.INFO.{stream}", query)
                assert info["state"]["subjects"]
                assert not any(token in subject for subject in info["state"]["subjects"])

    asyncio.run(scenario())


def test_a_reply_to_a_subject_that_differs_in_case_silences_no_subject_of_the_node(
    jetstream: JetStreamRealm,
) -> None:
    """A client may name any reply subject, and the server refuses what the node may not publish."""

    async def scenario() -> None:
        async with jetstream.bus() as bus, jetstream.stock() as client:
            output = bus.subjects.output("demo")
            heard = await client.subscribe(output)
            await client.flush()
            refused: list[str] = []
            bus.connection.on_denied.append(refused.append)
            bus.request_endpoint.reply([ReplyMessage(output.upper(), b"{}")])

            async def is_refused() -> bool:
                return bool(refused)

            await soon(is_refused)
            assert refused == [output.upper()]
            bus.connection.send([Outgoing(output, b"hello")])
            assert (await heard.next_msg(10)).data == b"hello"

    asyncio.run(scenario())
