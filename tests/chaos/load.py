"""Clients under whose commands things are broken, and the comparison of the answers they got with
what is journaled.

Each client has a session, a door and numbered commands, one after the other. They move the
session's machines in a circle, so one that is lost, doubled or out of order is also refused.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import groupby
from typing import Any

import msgspec
import nats.errors

from tests.chaos.digests import journaled
from tests.stock_client import Server, Stock, until

__all__ = ["Load", "Writer", "command", "load"]

PATIENCE_S = 60.0


def command(number: int) -> dict[str, Any]:
    """The body of a session's ``number``-th command."""
    if number < 2:
        return {"input": ("Initialize", "RegisterSession")[number]}
    turn, step = divmod(number - 2, 4)
    run, taken = {"run_id": f"run-{turn}"}, {"input_id": f"input-{turn}"}
    work = {"runtime_id": "runtime", "work_id": f"work-{turn}", "origin": "peer"}
    on, params = (
        ("accept_without_wake", taken),
        ("prepare", run),
        ("ingest", work),
        ("commit", run | taken),
    )[step]
    return {"input": on, "params": params}


class Writer:
    """One client."""

    def __init__(self, client: Stock, session: str, door: str) -> None:
        self._client, self.session, self.door = client, session, door
        self.done: list[str] = []
        """Ids of the commands that were vouched for: taken by the inbox, or answered."""
        self.stall_s = 0.0
        """The longest it had to wait for one of them."""

    async def work(self, stopped: asyncio.Event, pause_s: float) -> None:
        """One command after the other until it is stopped."""
        while not stopped.is_set():
            number, began_s = len(self.done), time.monotonic()
            id_ = f"{self.session}-{number}"
            await self._give(id_, command(number))
            self.done.append(id_)
            self.stall_s = max(self.stall_s, time.monotonic() - began_s)
            await asyncio.sleep(pause_s)

    async def _give(self, id_: str, body: dict[str, Any]) -> None:
        if self.door == "cmd":
            await self._client.submit("admission", self.session, body, Nats_Msg_Id=id_)
            return
        answer = await self._client.ask("admission", self.session, body, Nats_Msg_Id=id_)
        assert not answer.code, f"{id_}: {answer}"

    async def is_journaled(self, count: int) -> None:
        """Wait until so many of its commands have left their facts."""
        stream = f"ROOKERY_{self._client.realm}_JOURNAL"
        subject = f"rookery.{self._client.realm}.ev.session.{self.session}"
        last, streams = -1, await self._client.admin()
        while last < count - 1:
            await asyncio.sleep(0.01)
            try:
                message = await streams.get_last_msg(stream, subject)
            except (nats.errors.Error, OSError):
                continue
            last = int(msgspec.json.decode(message.data)[-1]["cause"][0].rpartition("-")[2])


class Load:
    """Writers at work."""

    def __init__(self, writers: list[Writer], tasks: list[asyncio.Task[None]]) -> None:
        self.writers, self._tasks = writers, tasks
        self.stopped = asyncio.Event()

    def vouched(self, *doors: str) -> int:
        """How many commands were answered."""
        return sum(len(writer.done) for writer in self.writers if writer.door in doors)

    @property
    def stall_s(self) -> float:
        return max(writer.stall_s for writer in self.writers)

    async def reaches(self, number: int) -> None:
        await self._while_at_work(lambda: self.vouched("cmd", "api") >= number)

    async def moves(self) -> None:
        """Wait until everybody has got on since this was asked."""
        before = {writer: len(writer.done) for writer in self.writers}
        await self._while_at_work(lambda: all(len(w.done) > n for w, n in before.items()))

    async def catches_up(self) -> None:
        """Wait until all that was vouched for by now is journaled."""
        counts = [(writer, len(writer.done)) for writer in self.writers]
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*(writer.is_journaled(count) for writer, count in counts))

    async def ends(self) -> None:
        """Let everybody finish the command in hand, and have it journaled."""
        self.stopped.set()
        await asyncio.gather(*self._tasks)
        await self.catches_up()

    async def _while_at_work(self, condition: Callable[[], bool]) -> None:
        def holds() -> bool:
            for task in self._tasks:
                if task.done():
                    task.result()
            return condition()

        await until(holds, "the load", PATIENCE_S)

    async def compare(self, server: Server, realm: str) -> int:
        """What was vouched for is journaled, once, in its client's order, and nothing else; how
        much that is."""
        found = await journaled(server, realm)
        for writer in self.writers:
            causes = [fact["cause"][0] for fact in found.facts(writer.session)]
            assert [id_ for id_, _ in groupby(causes)] == writer.done, writer.session
            assert not found.doubles(writer.session)
        assert not found.dead
        return self.vouched("cmd", "api")


@asynccontextmanager
async def load(client: Stock, sessions_a_door: int, *, pause_s: float = 0.0) -> AsyncIterator[Load]:
    """So many writers through each door."""
    writers = [
        Writer(client, f"{name}{number}", door)
        for name, door in (("inbox", "cmd"), ("asked", "api"))
        for number in range(sessions_a_door)
    ]
    tasks: list[asyncio.Task[None]] = []
    running = Load(writers, tasks)
    tasks += [asyncio.create_task(w.work(running.stopped, pause_s)) for w in writers]
    try:
        yield running
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
