"""The growth of a store: what a node costs on it, from an empty one up to a million runs.

For every size the loader fills the store, and a node starts on it: first without a checkpoint, then
with one, then after a kill. Latencies are relative to a second node on an empty store, measured by
turns in the same minute; all other figures compare with the first column, an empty store.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory, mkdtemp
from threading import Event
from time import perf_counter
from typing import Any, Final, NamedTuple

import msgspec

from rookery.actors.projections.lists import RunQueryHandler
from rookery.bus.client import Client
from rookery.bus.clock import entropy
from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.roles import Role
from rookery.bus.server import EmbeddedServer
from rookery.ops.bench.growth.journal_loader import (
    RECORDED,
    RecordedSession,
    load_runs,
    record_session,
    session_name,
)
from rookery.ops.bench.harness.harness import NodeProcess, start_process
from rookery.ops.bench.harness.load import Task
from rookery.ops.bench.harness.process_usage import resident_bytes
from rookery.ops.bench.harness.result_rows import describe_machine
from rookery.schemas.commands import RunsQuery
from rookery.schemas.errors import CodedError, Failed
from rookery.schemas.replies import RunState

__all__ = ["Growth", "GrowthRow", "measure_growth"]

_SIZES: Final = (10_000, 100_000, 1_000_000)
_TURNS: Final = 8
_RUNS_A, _RUNS_B, _WARM = 40, 12, 30
_A, _B = "1+1", "x = 0\nfor i in range(10):\n    x = same(i)\nx"
_RESULTS: Final = {_A: 2, _B: 9}
_WINDOW, _ROTATED = 64, 1_000
_OLD_SESSIONS: Final = 5
_SETTLE_S: Final = 5.0
"""A node refreshes its projections, and writes a checkpoint, every three seconds."""


class GrowthRow(msgspec.Struct, frozen=True, kw_only=True):
    """One figure, for every size of the store."""

    name: str
    unit: str
    values: tuple[float, ...]
    at_most: float | None = None
    """The target: of a ratio, or of seconds."""

    @property
    def met(self) -> bool | None:
        return None if self.at_most is None else max(self.values) <= self.at_most


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """The figures and what they were measured on."""

    runs: tuple[int, ...]
    """How many runs each store had."""
    rows: tuple[GrowthRow, ...]
    loads: tuple[float, ...]
    """The load average at each size."""
    machine: dict[str, Any]


_RATIO_A = "1+1, p50 relative to an empty store"
_RATIO_B = "ten calls, p50 relative to an empty store"
_START = "a node is ready, with a checkpoint"
_MEMORY_RATIO = "memory of the node, relative to an empty store"
_MEMORY = "memory of the node"
_TARGETS: Final = {_RATIO_A: 1.1, _RATIO_B: 1.1, _START: 2.0, _MEMORY_RATIO: 1.2}
Figures = dict[str, tuple[float, str]]
"""Value and unit, by name."""


def measure_growth(runs: int, sessions: int) -> Growth:
    """Measure at zero, at every power of ten from 10,000 on, and at so many runs."""
    load_before = os.getloadavg()
    sizes = [*(size for size in _SIZES if size < runs), runs]
    measured: list[tuple[int, float, Figures]] = []
    with TemporaryDirectory(prefix="rookery-growth-") as folder, _node_on(_new(folder)) as empty:
        store = _new(folder)
        with _node_on(store) as recording:
            recorded = asyncio.run(record_session(recording.url, recording.node_url))
        held = 0
        for batch, size in enumerate((0, *sizes)):
            filled: Figures = {}
            old = [RECORDED]
            if size:
                made, filled = _fill(store, recorded, size - held, sessions, batch)
                held += made
                old = [session_name(number, batch) for number in range(_OLD_SESSIONS)]
            figures = filled | _measure(store, empty, old)
            measured.append((held, os.getloadavg()[0], figures))
    return Growth(
        runs=tuple(size for size, _, _ in measured),
        rows=tuple(_rows([figures for _, _, figures in measured])),
        loads=tuple(load for _, load, _ in measured),
        machine=describe_machine(load_before),
    )


class _RunningNode(NamedTuple):
    """A node on a server of its own."""

    url: str
    """For its clients."""
    node_url: str
    process: NodeProcess
    server_pid: int
    ready_s: float
    """How long its start took."""


def _new(folder: str) -> Path:
    return Path(mkdtemp(dir=folder))


def _fill(
    store: Path, recorded: RecordedSession, runs: int, sessions: int, batch: int
) -> tuple[int, Figures]:
    """Load without a sync for each message, which changes nothing in the store."""
    begin_s = perf_counter()
    with EmbeddedServer(store, sync="default") as server:
        made = asyncio.run(
            load_runs(server.url, recorded, runs=runs, sessions=sessions, batch=batch)
        )
    return made, {"loaded": (made / (perf_counter() - begin_s), "runs/s")}


@contextmanager
def _node_on(store: Path) -> Iterator[_RunningNode]:
    with EmbeddedServer(store) as server, _node(server) as node:
        yield node


@contextmanager
def _node(server: EmbeddedServer) -> Iterator[_RunningNode]:
    begin_s = perf_counter()
    node_url, client_url = server.url, server.url_for(Role.OPERATOR)
    task = Task(
        url=node_url,
        client_url=client_url,
        admin_url="",
        store=str(server.store / "nodes"),
        sync="always",
    )
    process = NodeProcess(start_process("runs", task))
    try:
        process.await_ready()
        ready_s = perf_counter() - begin_s
        yield _RunningNode(client_url, node_url, process, server.pid, ready_s)
    finally:
        process.stop()


# --- one size -------------------------------------------------------------------------------------


def _measure(store: Path, empty: _RunningNode, old: Sequence[str]) -> Figures:
    """``old``: sessions that were loaded last."""
    with EmbeddedServer(store) as server:
        with _node(server) as first:
            found: Figures = {
                "a node is ready, without a checkpoint": (first.ready_s, "s"),
                "its first list of runs": (_timed(_list_runs(first.url)), "s"),
            }
            asyncio.run(_first_runs(first.url, old))
            _pause(_SETTLE_S)
        with _node(server) as node:
            found[_START] = node.ready_s, "s"
            found |= asyncio.run(_lists(node.url))
            found |= asyncio.run(_latencies(node.url, empty.url))
            _pause(_SETTLE_S)
            found[_MEMORY] = node.process.resident_bytes() / 1e6, "MB"
            found["memory of the server"] = resident_bytes(server.pid) / 1e6, "MB"
            found["the next run of an old session"] = asyncio.run(_first_runs(node.url, old)), "ms"
            found |= asyncio.run(_rotation(node.url))
            node.process.kill()
        with _node(server) as successor:
            found["another node is ready after a kill -9"] = successor.ready_s, "s"
        found |= asyncio.run(_without_node(server.url))
        found["disk"] = _disk_bytes(store) / 1e6, "MB"
    return found


async def _list_runs(url: str) -> None:
    """The first page, however long the node reads before."""
    async with Client(url) as client:
        while True:
            try:
                await client.ask("runs", "all", RunsQuery(limit=50))
                return
            except CodedError as error:
                if error.code != "NO_ANSWER":
                    raise


async def _lists(url: str) -> Figures:
    """What a node answers about all runs; each the median of some."""
    async with Client(url) as client:
        failed = RunsQuery(status=RunState.RUNTIME_ERROR, limit=50)
        oldest = await client.ask("runs", "all", RunsQuery(before="2000.1", limit=1))
        run = oldest["runs"][0]
        queries: dict[str, tuple[str, Any]] = {
            "the first page of runs": ("runs", RunsQuery(limit=50)),
            "failed runs": ("runs", failed),
            "a page of the oldest runs": ("runs", RunsQuery(before="2000.1", limit=50)),
            "runs of one session": ("runs", RunsQuery(session=run["session_id"], limit=50)),
            "an old run by its id": ("runs", RunsQuery(run_id=run["run_id"])),
            "the first page of sessions": ("sessions", {"limit": 50}),
            "approvals, ended ones too": ("pending", {"ended": True, "limit": 50}),
        }
        found: Figures = {}
        for name, (verb, query) in queries.items():
            taken_s = []
            for _ in range(5):
                begin_s = perf_counter()
                await client.ask(verb, "all", query)
                taken_s.append(perf_counter() - begin_s)
            found[name] = 1e3 * median(taken_s), "ms"
        return found


async def _without_node(url: str) -> Figures:
    """The first page of runs by a reader that has only the server."""
    bus = JetStreamBus(url)
    await bus.start()
    try:
        begin_s = perf_counter()
        listed = RunQueryHandler.without_node(bus.journal, store=bus.checkpoints)
        await listed.list(RunsQuery(limit=50))
        return {"the first page with no node": (perf_counter() - begin_s, "s")}
    finally:
        await bus.stop()


async def _latencies(url: str, empty_url: str) -> Figures:
    """Runs of both nodes by turns, in new sessions of equal age."""
    taken: dict[tuple[str, str], list[float]] = {}
    async with Client(url) as grown, Client(empty_url) as empty:
        session = f"fresh-{entropy(4).hex()}"
        for client in (grown, empty):
            await _run(client, session, _A, _WARM)
            await _run(client, session, _B, _WARM // 10)
        for _ in range(_TURNS):
            for side, client in (("grown", grown), ("empty", empty)):
                for code, count in ((_A, _RUNS_A), (_B, _RUNS_B)):
                    taken.setdefault((side, code), []).extend(
                        await _run(client, session, code, count)
                    )
    p50 = {key: 1e3 * median(values) for key, values in taken.items()}
    return {
        "1+1, p50": (p50["grown", _A], "ms"),
        _RATIO_A: (p50["grown", _A] / p50["empty", _A], "x"),
        "ten calls, p50": (p50["grown", _B], "ms"),
        _RATIO_B: (p50["grown", _B] / p50["empty", _B], "x"),
    }


async def _first_runs(url: str, sessions: Sequence[str]) -> float:
    """The median time of a run in each session, in milliseconds."""
    async with Client(url) as client:
        return 1e3 * median([(await _run(client, name, _A, 1))[0] for name in sessions])


async def _rotation(url: str) -> Figures:
    """The rate over few sessions, which stay live, and over so many that none does."""
    async with Client(url) as client:
        rates = []
        for sessions in (_WINDOW, _ROTATED):
            prefix = f"rotated-{entropy(4).hex()}"
            for _ in range(2):  # The first round creates the sessions.
                begin_s = perf_counter()
                names = (f"{prefix}-{number % sessions}" for number in range(_ROTATED))
                await asyncio.gather(*(_work_off(client, names) for _ in range(_WINDOW)))
                rate = _ROTATED / (perf_counter() - begin_s)
            rates.append(rate)
    few_rate, many_rate = rates
    return {
        f"1+1 over {_WINDOW} sessions": (few_rate, "runs/s"),
        f"1+1 over {_ROTATED:,} sessions, relative to that": (many_rate / few_rate, "x"),
    }


async def _work_off(client: Client, sessions: Iterator[str]) -> None:
    for session in sessions:
        await _run(client, session, _A, 1)


async def _run(client: Client, session: str, code: str, times: int) -> list[float]:
    taken_s = []
    for _ in range(times):
        begin_s = perf_counter()
        answer = await client.run(session, code)
        taken_s.append(perf_counter() - begin_s)
        if answer.result != _RESULTS[code]:
            raise Failed("NODE_FAILED", f"a run ended as {answer}")
    return taken_s


def _timed(work: Coroutine[Any, Any, None]) -> float:
    begin_s = perf_counter()
    asyncio.run(work)
    return perf_counter() - begin_s


def _pause(seconds: float) -> None:
    Event().wait(seconds)


def _disk_bytes(store: Path) -> int:
    return sum(file.stat().st_size for file in store.rglob("*") if file.is_file())


# --- the table ------------------------------------------------------------------------------------


def _rows(measured: Sequence[Figures]) -> Iterator[GrowthRow]:
    names = dict.fromkeys(name for figures in reversed(measured) for name in figures)
    for name in names:
        values = tuple(figures.get(name, (0.0, ""))[0] for figures in measured)
        unit = next(figures[name][1] for figures in measured if name in figures)
        yield GrowthRow(name=name, unit=unit, values=values, at_most=_TARGETS.get(name))
        if name == _MEMORY:
            yield GrowthRow(
                name=_MEMORY_RATIO,
                unit="x",
                values=tuple(value / values[0] for value in values),
                at_most=_TARGETS[_MEMORY_RATIO],
            )
