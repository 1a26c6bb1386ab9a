"""A realm of an older version is upgraded in place, without loss."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rookery.bus.clock import SystemClock
from rookery.bus.commands.command_messages import TIMER
from rookery.bus.commands.inbox import JetStreamTimers
from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.journal_audit import ChainAudit
from rookery.bus.nats.connection import Connection, Message, Outgoing
from rookery.bus.ports import Filter, Timer
from rookery.bus.realm_upgrade import apply_upgrade, plan_upgrade
from rookery.bus.server.server import EmbeddedServer
from rookery.bus.streams import FORMAT, SUBJECTS_KEY, ensure_journal
from rookery.bus.subjects import Subjects
from rookery.schemas.errors import Failed
from tests.bus.formats import FormerSubjects, append_to, make_format_1, make_format_2
from tests.bus.journals import Writer, gather, session
from tests.bus.partition_owners import opened
from tests.bus.realms import soon

REALM = "default"
ROOT = f"rookery.{REALM}"
_NO_SOURCE = [{"name": f"ROOKERY_{REALM}_TIMERS", "filter_subject": f"{ROOT}.none.>"}]
"""Timers that fire do not reach the inbox yet."""
FORMATS = {1: make_format_1, 2: make_format_2}
FAR_MS = 4_102_444_800_000
"""The year 2100."""


@asynccontextmanager
async def connected(server: EmbeddedServer) -> AsyncIterator[Connection]:
    connection = Connection(server.admin_url)
    await connection.open()
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def started(server: EmbeddedServer) -> AsyncIterator[JetStreamBus]:
    bus = JetStreamBus(server.url)
    await bus.start()
    try:
        yield bus
    finally:
        await bus.stop()


@pytest.mark.parametrize("number", FORMATS)
def test_an_old_realm_is_refused_until_it_is_upgraded_and_then_goes_on(
    server: EmbeddedServer, number: int
) -> None:
    async def scenario() -> None:
        subjects = Subjects(REALM)
        async with connected(server) as old:
            await FORMATS[number](old, subjects)
            writer = Writer()
            written = [writer.next(session(f"s{n}")) for n in range(5)]
            assert b'"seq":5' in await append_to(old, subjects, number, written)
            for sequence, append in enumerate(written, 1):
                writer.ends[append.entity] = sequence, append.chain

            with pytest.raises(Failed, match=r"REALM_UPGRADE_REQUIRED.*rookery realm upgrade"):
                await JetStreamBus(server.url).start()
            plan = await plan_upgrade(old, subjects)
            assert (plan.format, plan.to, plan.messages) == (number, FORMAT, 5)
            assert plan.is_needed
            await apply_upgrade(old, subjects)
            plan = await plan_upgrade(old, subjects)
            assert (plan.format, plan.messages, plan.is_needed) == (FORMAT, 5, False)
            if number == 1:  # No stream listens there now.
                with pytest.raises(Failed, match="SERVER_UNREACHABLE"):
                    await append_to(old, subjects, 1, [writer.next(session("s0"))])
        async with started(server) as bus:
            assert await writer.write(bus.journal, session("s0"), session("new")) == [6, 7]
            audit = ChainAudit()
            for stored in await gather(bus.journal.scan(Filter())):
                audit.add(stored)
            assert audit.audit.verified == 7

    asyncio.run(scenario())


# --- what format 2 leaves behind --------------------------------------------------------------


def _timer(timer_id: str, due_ms: int, body: bytes = b"") -> Timer:
    return Timer(id=timer_id, due_ms=due_ms, verb="wake", key="s", body=body)


async def arm_as_format_2(connection: Connection, timer: Timer) -> None:
    """Arm a timer on the subjects of that version."""
    arming = JetStreamTimers(connection, FormerSubjects(REALM))
    await arming.arm(timer)


async def fire_as_format_2(connection: Connection, command_id: str) -> None:
    """What the server stores when a timer of that version is due."""
    subject = FormerSubjects(REALM).fired("wake", "s")
    answer = await connection.request(Outgoing(subject, b"", headers=[(TIMER, command_id)]))
    assert b'"seq"' in answer.body


async def edited(connection: Connection, stream: str, **settings: Any) -> None:
    config = (await connection.api(f"STREAM.INFO.{stream}"))["config"]
    await connection.api(f"STREAM.UPDATE.{stream}", config | settings)


async def messages_of(connection: Connection, stream: str) -> int:
    return int((await connection.api(f"STREAM.INFO.{stream}"))["state"]["messages"])


def test_timers_of_the_older_version_fire_once_and_can_be_cancelled(
    server: EmbeddedServer,
) -> None:
    async def scenario() -> None:
        subjects = Subjects(REALM)
        due_ms = SystemClock().now_ms() + 1_500
        async with connected(server) as old:
            await make_format_2(old, subjects)
            await arm_as_format_2(old, _timer("soon", due_ms, b"body"))
            await arm_as_format_2(old, _timer("late", FAR_MS))
            await apply_upgrade(old, subjects)
        async with started(server) as bus:
            worker = await opened(bus, "s")
            (fired,) = await worker.has(1)
            assert (fired.id, fired.body) == (f"timer/soon/{due_ms}", b"body")
            assert fired.is_from_timer
            await bus.timers.cancel("late")
            await bus.timers.arm(_timer("sentinel", 0))
            assert [one.id for one in await worker.has(2)][1] == "timer/sentinel/0"
            state = await bus.connection.api(
                f"STREAM.INFO.{subjects.timers_stream}", {"subjects_filter": f"{ROOT}.timer.>"}
            )
            assert not state["state"].get("subjects")

    asyncio.run(scenario())


def test_a_timer_that_had_fired_reaches_the_inbox_once(server: EmbeddedServer) -> None:
    async def scenario() -> None:
        subjects = Subjects(REALM)
        async with connected(server) as old:
            await make_format_2(old, subjects)
            await fire_as_format_2(old, "timer/sourced/1")
            await soon(lambda: messages_of(old, subjects.inbox_stream))
            await edited(old, subjects.inbox_stream, sources=_NO_SOURCE)
            await fire_as_format_2(old, "timer/waiting/1")
            await apply_upgrade(old, subjects)
        async with started(server) as bus:
            worker = await opened(bus, "s")
            await bus.timers.arm(_timer("sentinel", 0))
            ids = [one.id for one in await worker.has(3)]
            assert ids == ["timer/sourced/1", "timer/waiting/1", "timer/sentinel/0"]

    asyncio.run(scenario())


def test_dead_letters_claims_and_commands_of_the_older_version_stay(
    server: EmbeddedServer,
) -> None:
    async def scenario() -> None:
        subjects = Subjects(REALM)
        async with connected(server) as old:
            await make_format_2(old, subjects)
            letter = Outgoing(f"{ROOT}.dead.run.s", b"{}", headers=[("Rookery-Id", "one")])
            await old.request(letter)
            await old.request(Outgoing(f"$KV.{subjects.secrets_bucket}.snapshots", b"key"))
            await old.request(Outgoing(f"{ROOT}.cmd.run.s", b"waits"))
            await apply_upgrade(old, subjects)
        async with started(server) as bus:
            (letter_now,) = await bus.inbox.dead_letters()
            assert (letter_now.verb, letter_now.key, letter_now.id) == ("run", "s", "one")
            secret = await bus.secrets.get("snapshots", 0)
            assert secret is not None
            assert secret.body == b"key"
            worker = await opened(bus, "s")
            (command,) = await worker.has(1)
            assert command.body == b"waits"
            assert not command.is_from_timer

    asyncio.run(scenario())


# --- kills and company ------------------------------------------------------------------------


class Killed(Exception):
    """The process ended here."""


@pytest.mark.parametrize("odd", [0, 1])
def test_an_upgrade_that_is_killed_after_each_of_its_writes_is_finished_by_the_next(
    server: EmbeddedServer, odd: int
) -> None:
    async def scenario() -> None:
        due_ms = SystemClock().now_ms() + 60_000
        async with connected(server) as old:
            await make_format_2(old, Subjects(REALM))
            await arm_as_format_2(old, _timer("a", due_ms))
            await arm_as_format_2(old, _timer("b", due_ms))
            await edited(old, Subjects(REALM).inbox_stream, sources=_NO_SOURCE)
            await fire_as_format_2(old, "timer/waiting/1")
            kills = 0
            while not await upgraded_within(old, writes=1 + (kills + odd) % 2):
                kills += 1
            assert kills > 9
        async with started(server) as bus:
            worker = await opened(bus, "s")
            assert (await worker.has(1))[0].id == "timer/waiting/1"
            pending = await bus.connection.api(
                f"STREAM.INFO.{bus.subjects.timers_stream}", {"subjects_filter": f"{ROOT}.timer.>"}
            )
            assert pending["state"]["subjects"] == {f"{ROOT}.timer.a": 1, f"{ROOT}.timer.b": 1}
            expected = sorted(spec.name for spec in bus.specs())
        async with connected(server) as admin:
            assert sorted((await admin.api("STREAM.NAMES"))["streams"]) == expected

    asyncio.run(scenario())


async def upgraded_within(connection: Connection, *, writes: int) -> bool:
    """Whether the upgrade ends before so many writes are done; the last of them kills it."""
    request, left = connection.request, writes

    async def killed(message: Outgoing, **patience: float) -> Message:
        nonlocal left
        answer = await request(message, **patience)
        is_read = any(read in message.subject for read in ("STREAM.INFO", "STREAM.MSG.GET"))
        left -= not is_read and b'"error"' not in answer.body
        if not left:
            raise Killed
        return answer

    connection.request = killed  # type: ignore[method-assign]
    try:
        await apply_upgrade(connection, Subjects(REALM))
    except Killed:
        return False
    finally:
        connection.request = request  # type: ignore[method-assign]
    return True


def test_nodes_that_upgrade_together_agree_on_the_token(server: EmbeddedServer) -> None:
    async def scenario() -> None:
        async with connected(server) as a, connected(server) as b, connected(server) as c:
            await make_format_2(a, Subjects(REALM))
            all_subjects = [Subjects(REALM) for _ in range(3)]
            pairs: list[Awaitable[None]] = [
                apply_upgrade(connection, subjects)
                for connection, subjects in zip((a, b, c), all_subjects, strict=True)
            ]
            await asyncio.gather(*pairs)
            assert len({subjects.node_token for subjects in all_subjects}) == 1
        async with started(server) as bus:
            assert bus.subjects.node_token == all_subjects[0].node_token

    asyncio.run(scenario())


def test_a_realm_of_a_later_version_is_refused_in_one_sentence(server: EmbeddedServer) -> None:
    async def scenario() -> None:
        subjects = Subjects(REALM)
        async with connected(server) as connection:
            await ensure_journal(connection, subjects)
            stream = subjects.journal_stream
            config = (await connection.api(f"STREAM.INFO.{stream}"))["config"]
            later = config["metadata"] | {"rookery-format": str(FORMAT + 1)}
            await connection.api(f"STREAM.UPDATE.{stream}", config | {"metadata": later})
            with pytest.raises(Failed, match=f"REALM_TOO_NEW.*has format {FORMAT + 1}"):
                await ensure_journal(connection, Subjects(REALM))

    asyncio.run(scenario())


def test_a_journal_whose_token_was_removed_is_refused_with_the_place_to_find_it(
    server: EmbeddedServer,
) -> None:
    async def scenario() -> None:
        subjects = Subjects(REALM)
        async with connected(server) as connection:
            await ensure_journal(connection, subjects)
            config = (await connection.api(f"STREAM.INFO.{subjects.journal_stream}"))["config"]
            del config["metadata"][SUBJECTS_KEY]
            await connection.api(f"STREAM.UPDATE.{subjects.journal_stream}", config)
            with pytest.raises(Failed, match=f"STREAM_MISMATCH.*has no {SUBJECTS_KEY}"):
                await ensure_journal(connection, Subjects(REALM))

    asyncio.run(scenario())
