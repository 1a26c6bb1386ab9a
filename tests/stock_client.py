"""A client of NATS's own making: nats-py and JSON, nothing of ours, and some patience.

What a command needs to be sure of its end is what any client has to do: keep its id and its reply
subject, and send it again until it is answered.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, NamedTuple, TypeVar

import nats
import nats.errors
import nats.js.errors

__all__ = ["Answer", "Stock", "stock", "until"]

T = TypeVar("T")
Fields = dict[str, Any]

DEADLINE_S = 45.0
AGAIN_S = 0.4
"""How long a client waits for an answer before it sends its command again."""
RETRYABLE = frozenset(
    {"NODE_DRAINING", "NODE_FAILED", "NODE_OVERLOADED", "PARTITION_UNOWNED", "NO_RESPONDERS"}
)


class Answer(NamedTuple):
    """What came to a reply subject."""

    code: str
    """Of an error; empty if it is none."""
    body: Fields

    @property
    def error(self) -> Fields:
        found: Fields = self.body["error"]
        return found


async def until(condition: Callable[[], T], what: str = "", deadline_s: float = DEADLINE_S) -> T:
    """The first true value of ``condition``."""
    end_s = time.monotonic() + deadline_s
    while not (value := condition()):
        assert time.monotonic() < end_s, f"waited {deadline_s} s in vain: {what}"
        await asyncio.sleep(0.005)
    return value


class Stock:
    """One connection to one realm."""

    def __init__(self, client: Any, realm: str) -> None:
        self.nats, self.realm = client, realm
        self.jetstream = client.jetstream(timeout=2)
        self.answers: dict[str, list[Answer]] = defaultdict(list)
        """By the last token of the reply subject."""
        self.facts: dict[str, list[Fields]] = defaultdict(list)
        """By session, once ``follow`` was called."""
        self._prefix = client.new_inbox()
        self._numbers = count(1)

    async def open(self) -> None:
        await self.nats.subscribe(f"{self._prefix}.*", cb=self._answered)

    async def follow(self) -> None:
        """Collect the facts of all sessions, by a stock consumer of what is stored: a plain
        subscription also sees what the stream refuses."""
        subject, stream = f"rookery.{self.realm}.ev.session.*", f"ROOKERY_{self.realm}_JOURNAL"
        await self.jetstream.subscribe(subject, stream=stream, ordered_consumer=True, cb=self._seen)

    def reply(self, name: str = "") -> str:
        """A subject answers can come to; those under the same name come to the same place."""
        return f"{self._prefix}.{name or next(self._numbers)}"

    async def publish(self, door: str, verb: str, key: str, body: object, **headers: str) -> None:
        """Once, and nobody knows whether it arrived. ``reply`` goes where the door looks for it."""
        reply = headers.pop("reply", "")
        if door == "cmd" and reply:
            headers["Rookery_Reply"], reply = reply, ""
        await self.nats.publish(
            f"rookery.{self.realm}.{door}.{verb}.{key}", data(body), reply, headers=spelled(headers)
        )

    async def submit(self, verb: str, key: str, body: object, **headers: str) -> int:
        """Durably: sent again until JetStream's ack came."""
        subject = f"rookery.{self.realm}.cmd.{verb}.{key}"
        end_s = time.monotonic() + DEADLINE_S
        while True:
            try:
                ack = await self.jetstream.publish(subject, data(body), headers=spelled(headers))
            except (nats.errors.Error, OSError) as error:
                if time.monotonic() > end_s or isinstance(error, nats.js.errors.APIError):
                    raise
                await asyncio.sleep(0.05)
            else:
                return int(ack.seq)

    async def ask(self, verb: str, key: str, body: object = None, **headers: str) -> Answer:
        """By request-reply: sent again, on the same reply subject, until somebody answers."""
        headers.setdefault("reply", self.reply())
        name = headers["reply"].rpartition(".")[2]
        headers.setdefault("Nats_Msg_Id", f"ask-{name}-{time.monotonic_ns()}")
        return await self.insist(
            lambda: self.publish("api", verb, key, body, **headers), lambda: self.answer_of(name)
        )

    async def insist(self, send: Callable[[], Any], found: Callable[[], T]) -> T:
        """``send`` again and again until there is a true value of ``found``."""
        end_s = time.monotonic() + DEADLINE_S
        while True:
            await send()
            again_s = time.monotonic() + AGAIN_S
            while time.monotonic() < again_s:
                if value := found():
                    return value
                await asyncio.sleep(0.002)
            assert time.monotonic() < end_s, f"no answer in {DEADLINE_S} s"

    def answer_of(self, name: str) -> Answer | None:
        """The first answer under a name that is not a request for patience."""
        told = (answer for answer in self.answers[name] if answer.code not in RETRYABLE)
        return next(told, None)

    async def _answered(self, message: Any) -> None:
        header = message.header or {}
        code = header.get("Rookery-Code", "")
        if header.get("Status") == "503":
            code = "NO_RESPONDERS"
        name = message.subject.rpartition(".")[2]
        self.answers[name].append(Answer(code, json.loads(message.data or b"{}")))

    async def _seen(self, message: Any) -> None:
        session = message.subject.rpartition(".")[2]
        self.facts[session] += json.loads(message.data)


@asynccontextmanager
async def stock(url: str, realm: str) -> AsyncIterator[Stock]:
    """A connected client that comes back by itself."""
    client = await nats.connect(
        url, max_reconnect_attempts=-1, reconnect_time_wait=0.1, error_cb=_silent
    )
    connected = Stock(client, realm)
    await connected.open()
    try:
        yield connected
    finally:
        await client.close()


async def _silent(_: Exception) -> None:
    """A server that was killed by the test is no news."""


def data(body: object) -> bytes:
    if isinstance(body, bytes):
        return body
    return b"" if body is None else json.dumps(body).encode()


def spelled(headers: dict[str, str]) -> dict[str, str] | None:
    """Keyword arguments as headers: ``Nats_Msg_Id`` is ``Nats-Msg-Id``."""
    return {name.replace("_", "-"): value for name, value in headers.items()} or None
