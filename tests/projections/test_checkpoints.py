"""Checkpoints of projections: lists are the same with and without them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.actors.admission.in_flight import InFlightCounter
from rookery.actors.projections import checkpoint
from rookery.actors.projections.checkpoint import DIGEST_BYTES, Checkpoints, position_of
from rookery.actors.projections.lists import approvals as approval_table
from rookery.actors.projections.lists import runs as run_table
from rookery.actors.projections.lists import sessions as session_table
from rookery.actors.projections.lists.approvals import ApprovalProjection, ApprovalQueryHandler
from rookery.actors.projections.lists.hooks import HookProjection
from rookery.actors.projections.lists.run_queries import RunQueryHandler
from rookery.actors.projections.lists.runs import RunProjection
from rookery.actors.projections.lists.sessions import SessionProjection, SessionQueryHandler
from rookery.actors.projections.projector import (
    CHECKPOINT_LAG_MESSAGES,
    FINAL_LAG_MESSAGES,
    Projector,
)
from rookery.bus.memory.storage import MemoryCheckpointStore
from rookery.bus.ports import Filter, StoredMessage
from rookery.bus.storage.stores import CheckpointHead
from rookery.schemas.approvals.lists import GrantedQuery, PendingQuery
from rookery.schemas.approvals.records import ApprovalTerminalStatus
from rookery.schemas.commands import RunsQuery, SessionsQuery
from rookery.schemas.digest import digest_bytes, digest_json
from rookery.schemas.facts import session, tool, turn
from tests.projections.fact_builders import FactHistory
from tests.projections.test_approval_list import answered, asked, closed, granted, requested
from tests.projections.test_session_list import begin


class Counted(FactHistory):
    """A journal that knows how much of it was read."""

    scanned = 0

    async def scan(
        self, where: Filter, after: int = 0
    ) -> AsyncGenerator[list[StoredMessage], None]:
        async for page in super().scan(where, after):
            self.scanned += len(page)
            yield page


def tables() -> list[Any]:
    return [RunProjection(), SessionProjection(), ApprovalProjection(), HookProjection()]


def listed(history: FactHistory, store: MemoryCheckpointStore | None = None) -> list[Any]:
    """All that the views of a node say which begins now."""

    async def ask() -> list[Any]:
        reading = Projector(history, tables(), store=store)
        approvals = ApprovalQueryHandler(reading, lambda: 0)
        return [
            await RunQueryHandler(reading).list(RunsQuery(limit=1_000)),
            await SessionQueryHandler(reading).list(SessionsQuery()),
            await approvals.list_approvals(PendingQuery(ended=True)),
            await approvals.list_grants(GrantedQuery(ended=True)),
        ]

    return asyncio.run(ask())


async def keep(history: FactHistory, store: MemoryCheckpointStore, *kept: Any) -> bool:
    """Leave a checkpoint as of now."""
    checkpoints, kept = Checkpoints(history, store), kept or tuple(tables())
    for stored in history.messages:
        for table in kept:
            table.apply(stored)
    place = position_of(history.messages[-1])
    return await checkpoints.write(
        await checkpoints.prepare(kept, place, await checkpoints.stored())
    )


def standing(store: MemoryCheckpointStore) -> CheckpointHead:
    assert store.current_head is not None
    return store.current_head


@pytest.fixture
def store() -> MemoryCheckpointStore:
    return MemoryCheckpointStore()


@pytest.fixture
def history() -> Counted:
    """What it takes to have something in every table."""
    history = Counted(FactHistory.recorded("shop").messages)
    begin(history, "t")
    history.run("s", "r1")
    history.accept("s", "r2", language="typescript")
    history.start("s", "r2")
    history.intend("s", "r2", *history.want("s", "r2", "tea", "cake"))
    history.say("s", requested("s.1"), asked("s.1", "inbox"))
    return history


# --- a shortcut -----------------------------------------------------------------------------------


def test_a_view_begins_at_the_checkpoint_and_reads_only_what_came_after(
    history: Counted, store: MemoryCheckpointStore
):
    before = listed(history)
    asyncio.run(keep(history, store))
    history.scanned = 0
    assert listed(history, store) == before
    assert history.scanned == 0
    history.complete("s", "r2")
    assert listed(history, store) == listed(FactHistory(history.messages)) != before
    assert history.scanned == 2


@pytest.mark.parametrize("kind", [RunQueryHandler, SessionQueryHandler])
def test_without_a_node_a_view_reads_only_its_own_part(
    history: Counted, store: MemoryCheckpointStore, kind: Any
):
    asyncio.run(keep(history, store))
    query = RunsQuery() if kind is RunQueryHandler else SessionsQuery()
    history.say("s", session.RunCommitted(run="r2", input_id="r2"))
    history.scanned = 0
    alone = asyncio.run(kind.without_node(history, store=store).list(query))
    assert history.scanned == 1
    assert alone == asyncio.run(kind.without_node(history).list(query))


def test_what_sessions_owe_counts_from_a_checkpoint_too(
    history: Counted, store: MemoryCheckpointStore
):
    asyncio.run(keep(history, store))
    load = InFlightCounter()
    asyncio.run(Projector(history, [SessionProjection(load)], store=store).refresh())
    assert load.total == 1


Move = st.tuples(st.sampled_from(range(10)), st.sampled_from("ab"), st.integers(1, 4))


def tell(history: FactHistory, move: tuple[int, str, int]) -> None:
    """Something that happens in a session, be it likely or not."""
    kind, key, number = move
    run, approval = f"{key}{number}", f"{key}.{number}"
    match kind:
        case 0:
            history.accept(key, run)
        case 1:
            history.start(key, run)
        case 2:
            history.complete(key, run)
        case 3:
            history.intend(key, run, history.want(key, run, "tea", "cake")[0])
        case 4:
            waits_for, code = (f"{run}-1",), "WAITING_FOR_APPROVAL"
            parked = turn.Parked(
                run=run, code=code, snapshot_id="", snapshot_blob="", waits_for=waits_for
            )
            history.say(key, tool.RecoveryRequired(run=run, operation_id=f"{run}-1", reason="died"))
            history.say(key, parked)
        case 5:
            history.say(key, requested(approval), asked(approval, "inbox"))
        case 6:
            history.say(key, answered(approval, "approved"), granted(approval, f"g{approval}"))
        case 7:
            history.say(key, closed(approval, ApprovalTerminalStatus.TIMED_OUT, "late"))
        case 8:
            history.say(key, session.Initialized(row="Initialize"))
        case _:
            history.write("session", f"broken-{key}", b'[{"type":"session.initialized.v9"}]')


@given(moves=st.lists(Move, min_size=1, max_size=60), cuts=st.sets(st.integers(0, 59)))
def test_a_checkpoint_and_what_came_after_is_what_everything_is(
    moves: list[tuple[int, str, int]], cuts: set[int]
):
    """Checkpoints may be written at any point, each by a projector that starts at the last one."""
    store, history = MemoryCheckpointStore(), FactHistory()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_table, "PAGE_RUNS", 2)
        patch.setattr(run_table, "RECENT_RUNS_MIN", 1)
        patch.setattr(checkpoint, "LISTED_PAGES", 2)
        patch.setattr(session_table, "PART_SESSIONS", 1)
        for number, move in enumerate(moves):
            tell(history, move)
            if number in cuts:
                asyncio.run(_write_checkpoint(history, store))
        assert listed(history, store) == listed(history)


async def _write_checkpoint(history: FactHistory, store: MemoryCheckpointStore) -> None:
    reading = Projector(history, tables(), store=store)
    await reading.refresh()
    await reading._checkpoint_if_behind(0)


# --- damaged ones --------------------------------------------------------------------------------


def _damage_head(store: MemoryCheckpointStore) -> None:
    revision, body = standing(store)
    store.current_head = CheckpointHead(revision, body.replace(b'"sequence":', b'"sequence":1'))


def _forge_position(store: MemoryCheckpointStore) -> None:
    """A forged checkpoint with valid digests."""
    revision, body = standing(store)
    head = msgspec.json.decode(body[DIGEST_BYTES:])
    head["place"]["sequence"] -= 1
    text = msgspec.json.encode(head)
    store.current_head = CheckpointHead(revision, digest_bytes(text).encode() + text)


def _spell_it_otherwise(store: MemoryCheckpointStore) -> None:
    text = b'{"place":7}'
    store.current_head = CheckpointHead(
        standing(store).revision, digest_bytes(text).encode() + text
    )


def _damage_part(store: MemoryCheckpointStore) -> None:
    name = max(store.parts, key=lambda name: len(store.parts[name]))
    store.parts[name] = store.parts[name][:-1] + b"?"


def _lose_part(store: MemoryCheckpointStore) -> None:
    del store.parts[next(iter(store.parts))]


@pytest.mark.parametrize(
    "damage",
    [_damage_head, _forge_position, _spell_it_otherwise, _damage_part, _lose_part],
)
def test_a_damaged_checkpoint_is_none_and_is_replaced(
    history: Counted, store: MemoryCheckpointStore, damage: Any
):
    before = listed(history)
    asyncio.run(keep(history, store))
    damage(store)
    history.scanned = 0
    assert listed(history, store) == before
    assert history.scanned == len(history.messages)
    history.run("s", "r3")
    asyncio.run(_write_checkpoint(history, store))
    history.scanned = 0
    assert listed(history, store) == listed(FactHistory(history.messages))
    assert history.scanned == 0


def test_a_checkpoint_of_another_form_is_none(
    history: Counted, store: MemoryCheckpointStore, monkeypatch: pytest.MonkeyPatch
):
    before = listed(history)
    with monkeypatch.context() as older:
        older.setattr(RunProjection, "version", "of another version")
        asyncio.run(keep(history, store))
    history.scanned = 0
    assert listed(history, store) == before
    assert history.scanned == len(history.messages)


def test_a_checkpoint_of_another_journal_is_none(history: Counted, store: MemoryCheckpointStore):
    asyncio.run(keep(history, store))
    for cut in (0, 1):
        other = Counted(history.messages[: len(history.messages) // 2])
        for number in range(cut * len(history.messages)):
            other.say(f"other-{number}", session.Initialized(row="Initialize"))
        for stored in other.messages:
            msgspec.structs.force_setattr(stored, "message_id", f"other-{stored.sequence}")
        assert listed(other, store) == listed(FactHistory(other.messages))


# --- several writers, and what they leave ---------------------------------------------------------


def test_of_two_writers_one_loses_and_harms_nothing(history: Counted, store: MemoryCheckpointStore):
    async def both() -> list[bool]:
        checkpoints = Checkpoints(history, store)
        standing = await checkpoints.stored()
        drafts = []
        for _ in range(2):
            reading = tables()
            for stored in history.messages:
                for table in reading:
                    table.apply(stored)
            drafts.append(
                await checkpoints.prepare(reading, position_of(history.messages[-1]), standing)
            )
        return [await checkpoints.write(draft) for draft in drafts]

    assert asyncio.run(both()) == [True, False]
    history.scanned = 0
    assert listed(history, store) == listed(FactHistory(history.messages))
    assert history.scanned == 0


def test_what_has_not_changed_is_not_written_again_and_what_was_replaced_is_gone(
    history: Counted, store: MemoryCheckpointStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(run_table, "PAGE_RUNS", 2)
    for number in range(10):
        history.run("s", f"more-{number}")
    asyncio.run(_write_checkpoint(history, store))
    before = set(store.parts)
    for number in range(2):
        history.run("s", f"again-{number}")
    asyncio.run(_write_checkpoint(history, store))
    after = set(store.parts)
    assert len(before & after) >= 5
    named = msgspec.json.decode(standing(store).body[DIGEST_BYTES:])["tables"]
    assert after == {part["name"] for table in named.values() for part in table["parts"]}


def test_a_node_leaves_a_checkpoint_once_it_is_far_behind_and_when_it_stops(
    store: MemoryCheckpointStore,
):
    history = FactHistory()

    def grow(messages: int) -> None:
        for _ in range(messages):
            history.write("session", "s", b"[]")

    async def live() -> list[int]:
        reading, standing = Projector(history, tables(), store=store), list[int]()

        async def look() -> None:
            await reading.refresh()
            await reading._checkpoint_if_behind(CHECKPOINT_LAG_MESSAGES)
            head = await Checkpoints(history, store).stored()
            standing.append(head.head.place.sequence)

        grow(CHECKPOINT_LAG_MESSAGES)
        await look()
        grow(1)
        await look()
        grow(FINAL_LAG_MESSAGES)
        await look()
        await reading.checkpoint()
        await look()
        grow(1)
        await reading.checkpoint()
        await look()
        return standing

    kept = CHECKPOINT_LAG_MESSAGES + 1
    assert asyncio.run(live()) == [0, kept, kept, kept, kept + FINAL_LAG_MESSAGES + 1]


def test_a_projector_of_a_part_of_the_journal_writes_no_checkpoint(
    history: Counted, store: MemoryCheckpointStore
):
    async def read() -> None:
        reading = Projector(history, [RunProjection()], Filter(family="turn"), store)
        await reading.refresh()
        await reading._checkpoint_if_behind(0)

    asyncio.run(read())
    assert not store.parts


# --- their form -----------------------------------------------------------------------------------

FOLDED = {
    "runs": (7, "45be8ed7cb33c3ccb795e271a027bccd5768827aed4b6747d8eb9414bb4cf0a7"),
    "sessions": (1, "853d48da8c684cd9da67622eca22f764cde0c4d566bd0692ba88caf79d21b702"),
    "approvals": (2, "733b911afe85e93cd59ff166b0a4dda520cb66052b84e65896714feac37b9920"),
}
"""What each way of folding (``FOLDS``) makes of the histories below, by its digest. Where it makes
something else of them now, raise ``FOLDS``: older checkpoints must not be read."""


@pytest.mark.parametrize("name", FOLDED)
def test_a_changed_fold_needs_a_new_number(name: str):
    history = FactHistory.recorded("shop")
    for number in range(200):
        tell(history, (number % 10, "ab"[number // 10 % 2], number // 20 % 4 + 1))
    runs, sessions, approvals, _ = tables()
    for stored in history.messages:
        for table in (runs, sessions, approvals):
            table.apply(stored)
    made = {
        "runs": (run_table.FOLDS, b"".join(runs.parts()).hex()),
        "sessions": (
            session_table.FOLDS,
            [
                [key, s.host.phase, s.pending_count, s.generation]
                for key, s in sessions.states.items()
            ],
        ),
        "approvals": (approval_table.FOLDS, b"".join(approvals.parts()).hex()),
    }
    folds, what = made[name]
    assert (folds, digest_json(what)) == FOLDED[name]
