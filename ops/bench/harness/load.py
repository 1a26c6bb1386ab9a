"""The load of one process of a bench: its task, the window of messages in flight, and the result.

A task is passed on the command line. The window has a fixed number of messages in flight and sends
a new one per answer. It times each message from sending to answer, and an error as an answer ends
the measurement. The load makes the messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import perf_counter

import msgspec

from rookery.bus.nats import Connection, Message, Outgoing
from rookery.ops.bench.harness.result_rows import Sync, percentile
from rookery.ops.config import Driver
from rookery.schemas.errors import Failed

__all__ = ["LoadResult", "LoadWindow", "Task", "command_id", "is_error", "timed"]


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One cell: one kind of load, from start to the last answer."""

    kind: str = ""
    """The kind of load; a node needs none."""
    url: str
    """For nodes, for what reads or writes facts as they do, and for commands of the benches' own
    family."""
    client_url: str
    """For clients of the realm."""
    admin_url: str
    """For the baselines: without limits."""
    sync: Sync
    count: int = 0
    window: int = 1
    """Messages in flight at any time."""
    entities: int = 1_000
    """Used in turn, beginning with number ``first``."""
    first: int = 0
    node_pid: int = 0
    """Of the node whose processor time the load reads."""
    realm: str = "default"
    other_url: str = ""
    """For clients of a second realm, on this server or on a linked one."""
    other_pid: int = 0
    """Of the second realm's node."""
    token_url: str = ""
    """Of the authorization server of a node with leases."""
    store: str = ""
    """A folder beside which nodes make their keys, so that they make none beside the user's."""
    driver: Driver = "outside"
    """A node's driver: its own sandbox, or a client outside."""
    cell: str = ""
    """The prefix of the ids of the cell's commands."""
    seconds_max: float = 20.0
    """The load generator sends nothing after so long."""


def command_id(cell: str, number: int) -> str:
    """As long as a client's UUID, and recognisable in the journal."""
    return f"{cell}-{number:0{35 - len(cell)}}"


_SILENCE_S_MAX = 15.0
"""Without any answer for so long, the measurement fails."""


class LoadResult(msgspec.Struct, frozen=True):
    """The result of one cell."""

    done: int
    seconds: float
    p50_us: float = 0.0
    p99_us: float = 0.0
    left: int = 0
    """Messages in the journal, if the load counts them."""
    beside_p50_us: float = 0.0
    """Of a second duration, if the load measures one beside its own."""
    figures: dict[str, float] = {}
    """Of a load that measures several things in turn."""

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.done / self.seconds


def timed(taken_s: Sequence[float], seconds: float) -> LoadResult:
    """The result of messages with these durations."""
    p50_s, p99_s = percentile(taken_s, 0.5), percentile(taken_s, 0.99)
    return LoadResult(len(taken_s), seconds, 1e6 * p50_s, 1e6 * p99_s)


def is_error(answer: Message) -> bool:
    """Whether JetStream or a node refuses: only then the answer has a header, or an ``error``."""
    return bool(answer.header) or b'"error"' in answer.body


class LoadWindow:
    """Answers come to ``reply(n)``, n being the number of the message."""

    def __init__(self, connection: Connection, task: Task) -> None:
        self._connection, self._task = connection, task
        self._inbox = connection.client.new_inbox()
        self._messages: Sequence[Outgoing] = ()
        self._start_s = 0.0
        self._sent_s: list[float] = []
        self._latencies_s: list[float] = []
        self._closed = asyncio.Event()
        self._failure = ""

    def reply(self, number: int) -> str:
        """The reply subject of message ``number``."""
        return f"{self._inbox}.{number}"

    def fail(self, failure: str) -> None:
        """End the measurement with this failure."""
        self._failure = failure
        self._closed.set()

    async def run(self, messages: Sequence[Outgoing]) -> LoadResult:
        """Send all messages, or as many as fit into the time, and wait for their answers."""
        self._messages = messages
        subscription = await self._connection.subscribe(f"{self._inbox}.*", self._answered)
        self._start_s = perf_counter()
        self._send(self._task.window)
        await self._all_answered()
        seconds = perf_counter() - self._start_s
        await subscription.cancel()
        if self._failure:
            raise Failed("NODE_FAILED", f"the load failed: {self._failure}")
        return timed(self._latencies_s, seconds)

    async def _all_answered(self) -> None:
        heard = -1
        while not self._closed.is_set():
            if heard == len(self._latencies_s):
                self.fail(f"{heard} answers, then none for {_SILENCE_S_MAX:.0f} s")
                return
            heard = len(self._latencies_s)
            try:
                await asyncio.wait_for(self._closed.wait(), _SILENCE_S_MAX)
            except TimeoutError:
                continue

    def _send(self, count: int) -> None:
        now_s = perf_counter()
        if now_s - self._start_s > self._task.seconds_max:
            return
        first = len(self._sent_s)
        messages = self._messages[first : first + count]
        self._sent_s += [now_s] * len(messages)
        if messages and not self._connection.send(messages):
            self.fail("the connection to the server was lost")

    def _answered(self, answers: list[Message]) -> None:
        now_s = perf_counter()
        for answer in answers:
            if is_error(answer):
                self.fail(repr(answer.header[:200] + answer.body[:200]))
                return
            number = int(answer.subject.rpartition(".")[2])
            self._latencies_s.append(now_s - self._sent_s[number])
        self._send(len(answers))
        if len(self._latencies_s) == len(self._sent_s):
            self._closed.set()
