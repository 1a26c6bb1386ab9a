"""The inbox on a real server: stock clients, kills, outages and limits."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import string
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from rookery.bus.commands import partition_consumer
from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.nats.connection import Message, Outgoing
from rookery.bus.subjects import encode_token, partition_of
from rookery.schemas.errors import Failed, Refused
from tests.bus.deadlines import wait_until
from tests.bus.partition_owners import Worker, neighbours, opened, submitted
from tests.bus.realms import JetStreamRealm

STREAM = "ROOKERY_default_INBOX"


def test_a_stock_client_may_use_one_id_for_two_sessions_at_once(
    jetstream: JetStreamRealm,
) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as bus, jetstream.stock() as client:
            worker = await Worker(bus).open()
            for number in range(500):
                for session in ("one", "two"):
                    headers = {"Nats-Msg-Id": f"id-{number}"}
                    await client.publish(f"rookery.default.cmd.run.{session}", b"", headers=headers)
            await worker.has(1000)
            ids = [f"id-{number}" for number in range(500)]
            for session in ("one", "two"):
                assert [d.id for d in worker.taken if d.key == session] == ids

    asyncio.run(scenario())


def test_the_inbox_has_no_duplicate_window_even_after_a_restart(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as bus:
            await bus.inbox.submit("run", "a", b"", message_id="same")
        await asyncio.to_thread(jetstream.server.restart)
        async with jetstream.bus() as bus, jetstream.stock() as client:
            ack = await client.jetstream().publish(
                "rookery.default.cmd.run.b", b"", headers={"Nats-Msg-Id": "same"}
            )
            assert not ack.duplicate
            info = await bus.connection.api(f"STREAM.INFO.{STREAM}")
            assert "duplicate_window" not in info["config"]

    asyncio.run(scenario())


def test_the_server_and_rookery_compute_the_same_partition_of_every_key(
    jetstream: JetStreamRealm,
) -> None:
    drawn = random.Random(7)
    letters = string.printable + "äöü€é😀"
    keys = ["".join(drawn.choices(letters, k=drawn.randint(1, 40))) for _ in range(300)]
    keys += [f"lease.{number}.a" for number in range(100)] + ["%", "%2E", ".", "*", ">"]

    async def stored_partition(bus: JetStreamBus, key: str) -> int:
        sequence = await bus.inbox.submit("run", key, b"", message_id="")
        answer = await bus.connection.api(f"STREAM.MSG.GET.{STREAM}", {"seq": sequence})
        _, _, _, partition, verb, token = answer["message"]["subject"].split(".")
        assert (verb, token) == ("run", encode_token(key))
        return int(partition)

    async def scenario() -> None:
        async with jetstream.bus() as bus:
            stored = await asyncio.gather(*(stored_partition(bus, key) for key in keys))
            assert stored == [partition_of(key) for key in keys]

    asyncio.run(scenario())


def test_invalid_headers_break_no_message(jetstream: JetStreamRealm) -> None:
    odd = [
        b"NATS/1.0\r\nNats-Msg-Id\r\n\r\n",
        b"NATS/1.0\r\nNats-Msg-Id: \xff\xfe\r\n\r\n",
        b"NATS/1.0 404 No Messages\r\n\r\n",
        b"NATS/1.0\r\n: :\r\nRookery-Reply: $JS.API.STREAM.DELETE.X\r\n\r\n",
        b"NATS/1.0\r\nRookery-Reply: rookery.default.ev.session.s\r\n\r\n",
        b"NATS/1.0\r\nRookery-Reply: a b\r\n\r\n",
        b"NATS/1.0\r\nRookery-Reply: a..b\r\nRookery-Mode: \r\n\r\n",
    ]

    async def scenario() -> None:
        async with jetstream.bus() as bus:
            await submitted(bus, "s", b"before")
            for header in odd:
                line = f"HPUB rookery.default.cmd.run.s {len(header)} {len(header)}\r\n"
                bus.connection.client.write_now(line.encode() + header + b"\r\n")
            await submitted(bus, "s", b"after")
            worker = await opened(bus, "s")
            taken = await worker.has(len(odd) + 2)
            assert worker.bodies() == [b"before", *[b""] * len(odd), b"after"]
            assert all(d.reply_to == "" and d.id for d in taken)

    asyncio.run(scenario())


def test_commands_survive_a_killed_server(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as bus:
            await submitted(bus, "s", b"1", b"2", b"3")
            worker = await opened(bus, "s", does=False)
            await worker.has(3)
            await submitted(bus, "s", b"4", b"5")
            await asyncio.to_thread(jetstream.server.kill)
            await wait_until(lambda: not bus.connected)
            worker.do(worker.taken)
            worker.does = True
            await asyncio.to_thread(jetstream.server.start)
            await submitted(bus, "s", b"6")
            await worker.has(6)
            assert worker.bodies() == [b"1", b"2", b"3", b"4", b"5", b"6"]
            assert {d.attempt for d in worker.taken} == {1}

    asyncio.run(scenario())


def test_under_load_and_kills_every_key_keeps_its_order(jetstream: JetStreamRealm) -> None:
    keys = [f"session-{number}" for number in range(8)]
    wanted = [b"%d" % number for number in range(60)]

    async def kill_twice(worker: Worker) -> None:
        for count in (100, 250):
            await worker.has(count)
            await asyncio.to_thread(jetstream.server.kill)
            await asyncio.to_thread(jetstream.server.start)

    async def scenario() -> None:
        async with jetstream.bus() as bus:
            worker = await Worker(bus).open()
            submitting = [submitted(bus, key, *wanted) for key in keys]
            await asyncio.gather(kill_twice(worker), *submitting)
            await wait_until(lambda: len({(d.key, d.body) for d in worker.taken}) == 480)
            for key in keys:
                assert list(dict.fromkeys(worker.bodies(key))) == wanted

    asyncio.run(scenario())


_VANISHING = """
import asyncio, sys
from rookery.bus.jetstream_bus import JetStreamBus

async def main(url, partition):
    bus = JetStreamBus(url)
    await bus.start()
    await bus.inbox.open(partition, lambda batch: print(len(batch), flush=True))
    await asyncio.sleep(60)

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


def test_messages_of_a_killed_process_are_delivered_to_the_next(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as bus:
            await submitted(bus, "s", b"1", b"2", b"3")
            arguments = [sys.executable, "-c", _VANISHING, jetstream.server.url]
            with subprocess.Popen(
                [*arguments, str(partition_of("s"))], stdout=subprocess.PIPE
            ) as node:
                assert node.stdout is not None
                assert await asyncio.to_thread(node.stdout.readline) == b"3\n"
                os.kill(node.pid, signal.SIGKILL)
            worker = await opened(bus, "s")
            await worker.has(3)
            assert [[(d.body, d.attempt) for d in batch] for batch in worker.batches] == [
                [(b"1", 2)],
                [(b"2", 2)],
                [(b"3", 2)],
            ]

    asyncio.run(scenario())


@pytest.fixture
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the timeouts, so that a silence is noticed at once."""
    monkeypatch.setattr(partition_consumer, "_EXPIRES_S", 0.1)
    monkeypatch.setattr(partition_consumer, "_GRACE_S", 0.1)


@pytest.mark.usefixtures("short_timeouts")
def test_a_partition_whose_consumer_was_deleted_continues_at_its_position(
    jetstream: JetStreamRealm,
) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as bus:
            worker = await opened(bus, "s")
            await submitted(bus, "s", b"1", b"2")
            await worker.has(2)
            consumers = await bus.connection.api(f"CONSUMER.NAMES.{STREAM}")
            for name in consumers["consumers"]:
                await bus.connection.api(f"CONSUMER.DELETE.{STREAM}.{name}")
            await submitted(bus, "s", b"3")
            await worker.has(3)
            assert worker.bodies() == [b"1", b"2", b"3"]

    asyncio.run(scenario())


@pytest.mark.usefixtures("short_timeouts")
def test_a_pull_that_was_lost_on_its_way_is_noticed(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as bus:
            connection: Any = bus.connection
            send = connection.send
            lost: list[Outgoing] = []

            def lose_one(messages: Sequence[Outgoing]) -> bool:
                if lost or "MSG.NEXT" not in messages[-1].subject:
                    return bool(send(messages))
                lost.extend(messages)
                return True

            connection.send = lose_one
            worker = await opened(bus, "s")
            await submitted(bus, "s", b"1")
            await worker.has(1)
            assert lost

    asyncio.run(scenario())


def test_a_takeover_without_a_reply_is_recognised_as_ours(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as bus:
            worker = await opened(bus, "s")
            connection: Any = bus.connection
            api = connection.api
            lost: list[str] = []

            async def lose_one(subject: str, *query: Any, **options: Any) -> dict[str, Any]:
                answer: dict[str, Any] = await api(subject, *query, **options)
                if lost or not subject.startswith("CONSUMER.CREATE."):
                    return answer
                lost.append(subject)
                raise Failed("SERVER_UNREACHABLE", "the answer was lost")

            connection.api = lose_one
            await asyncio.to_thread(jetstream.server.restart)
            await wait_until(lambda: lost)
            await submitted(bus, "s", b"1")
            await worker.has(1)
            consumers = await bus.connection.api(f"CONSUMER.NAMES.{STREAM}")
            assert len(consumers["consumers"]) == 1

    asyncio.run(scenario())


def test_expired_suspects_do_not_block_a_partition(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as first, jetstream.bus() as second:
            await submitted(first, "s", b"1", b"2")
            await (await opened(first, "s", does=False)).has(2)
            await jetstream.purge(STREAM, "rookery.default.cmd.*.*.s")
            worker = await Worker(second).open()
            await submitted(second, "s", b"3", b"4")
            await worker.has(2)
            assert [(d.body, d.attempt) for d in worker.taken] == [(b"3", 1), (b"4", 1)]

    asyncio.run(scenario())


def test_one_consumer_a_partition_remains_however_often_it_moves(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as bus:
            for _ in range(3):
                worker = await Worker(bus).open([3, 4])
                await worker.close([3, 4])
            consumers = await bus.connection.api(f"CONSUMER.NAMES.{STREAM}")
            assert sorted(consumers["consumers"]) == ["p3-3", "p4-3"]

    asyncio.run(scenario())


def test_a_message_larger_than_a_batch_is_delivered_alone(
    jetstream: JetStreamRealm, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {**json.loads(partition_consumer._BATCH_QUERY), "max_bytes": 600}
    monkeypatch.setattr(partition_consumer, "_BATCH_QUERY", json.dumps(small).encode())

    async def scenario() -> None:
        async with jetstream.bus() as bus:
            one, two = neighbours(2)
            await bus.inbox.submit("run", one, b"x", message_id="1")
            await bus.inbox.submit("run", two, b"x" * 5000, message_id="2")
            await bus.inbox.submit("run", one, b"x", message_id="3")
            worker = await opened(bus, one)
            await worker.has(3)
            assert [[d.id for d in batch] for batch in worker.batches] == [["1"], ["2"], ["3"]]

    asyncio.run(scenario())


def test_a_partition_can_be_opened_and_closed_during_an_outage(
    jetstream: JetStreamRealm,
) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as bus:
            await submitted(bus, "s", b"1")
            worker = await opened(bus, "other")
            await asyncio.to_thread(jetstream.server.kill)
            await wait_until(lambda: not bus.connected)
            await worker.close()
            opening = asyncio.create_task(opened(bus, "s"))
            await asyncio.to_thread(jetstream.server.start)
            await (await opening).has(1)

    asyncio.run(scenario())


# Submitting.


def test_submitting_waits_for_a_restart_and_repeats_under_the_same_id(
    jetstream: JetStreamRealm,
) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as bus:
            await asyncio.to_thread(jetstream.server.kill)
            submitting = asyncio.create_task(
                bus.inbox.submit("run", "s", b"", message_id="patient")
            )
            await wait_until(lambda: not bus.connected)
            await asyncio.to_thread(jetstream.server.start)
            await submitting
            (delivery,) = await (await opened(bus, "s")).has(1)
            assert delivery.id == "patient"

    asyncio.run(scenario())


def test_a_submission_without_an_ack_is_repeated_under_the_same_id(
    jetstream: JetStreamRealm,
) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as bus:
            connection: Any = bus.connection
            request = connection.request
            lost: list[Message] = []

            async def lose_one(message: Outgoing, **patience: float) -> Message:
                answer: Message = await request(message, **patience)
                if lost:
                    return answer
                lost.append(answer)
                raise Failed("SERVER_UNREACHABLE", "the answer was lost")

            connection.request = lose_one
            await bus.inbox.submit("run", "s", b"", message_id="once")
            del connection.request
            worker = await opened(bus, "s")
            await worker.has(2)
            assert [d.id for d in worker.taken] == ["once", "once"]

    asyncio.run(scenario())


def test_a_full_inbox_and_a_large_command_are_different_errors(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as bus:
            with pytest.raises(Refused, match="PAYLOAD_TOO_LARGE"):
                await bus.inbox.submit("run", "s", b"x" * 1_045_000, message_id="large")
            config = (await bus.connection.api(f"STREAM.INFO.{STREAM}"))["config"]
            await bus.connection.api(f"STREAM.UPDATE.{STREAM}", {**config, "max_msgs": 1})
            await submitted(bus, "s", b"1")
            with pytest.raises(Failed, match="JOURNAL_FULL"):
                await submitted(bus, "s", b"2")

    asyncio.run(scenario())
