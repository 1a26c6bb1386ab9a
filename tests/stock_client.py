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
from typing import Any, Literal, NamedTuple, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

import nats
import nats.errors
import nats.js.errors

from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer

__all__ = ["Answer", "Server", "Stock", "inbox_prefix", "stock", "until"]

T = TypeVar("T")
Fields = dict[str, Any]

DEADLINE_S = 150.0
AGAIN_S, AGAIN_S_MAX = 0.4, 1.0
"""How long a client waits for an answer before it sends its command again: each time for longer,
since on a busy machine the repetitions of many clients would keep the node busy."""
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


class Server(Protocol):
    """A server and its credentials."""

    def url_for(self, role: Role, *, realm: str) -> str: ...


class Stock:
    """One connection to one realm."""

    def __init__(self, client: Any, realm: str, admin_url: str = "") -> None:
        self.nats, self.realm = client, realm
        self._admin_url, self._admin = admin_url, None
        self._admin_opening = asyncio.Lock()
        self.jetstream = client.jetstream(timeout=2)
        self.answers: dict[str, list[Answer]] = defaultdict(list)
        """By the last token of the reply subject."""
        self.facts: dict[str, list[Fields]] = defaultdict(list)
        """By session, once ``follow`` was called."""
        self._prefix = client.new_inbox()
        self._numbers = count(1)

    async def open(self) -> None:
        await self.nats.subscribe(f"{self._prefix}.*", cb=self._answered)

    async def close(self) -> None:
        await self.nats.close()
        if self._admin is not None:
            await self._admin.close()

    async def follow(self) -> None:
        """Collect the facts of all sessions."""
        await self.watch(f"rookery.{self.realm}.ev.session.*", self._seen)

    def inputs(self, session: str) -> list[Fields]:
        """The facts of accepted inputs that the feed has shown: answers may come before them."""
        return [one for one in self.facts[session] if one["type"] == "session.input_accepted.v1"]

    async def watch(self, subject: str, seen: Callable[[Any], Any], stream: str = "") -> None:
        """Call ``seen`` with what is stored: a plain subscription also sees what the stream
        refuses."""
        stream = stream or f"ROOKERY_{self.realm}_JOURNAL"
        await (await self.admin()).subscribe(subject, stream=stream, ordered_consumer=True, cb=seen)

    async def admin(self) -> Any:
        """JetStream as the test itself uses it, by another connection and without limits."""
        async with self._admin_opening:  # Many ask at once, and only one connection is closed.
            if self._admin is None:
                assert self._admin_url, "the server has no user without limits"
                self._admin = await _connected(self._admin_url, _silent)
        return self._admin.jetstream(timeout=2)

    def reply(self, name: str = "") -> str:
        """A subject answers can come to; those under the same name come to the same place."""
        return f"{self._prefix}.{name or next(self._numbers)}"

    async def publish(self, door: str, verb: str, key: str, body: object, **headers: str) -> None:
        """Once; whether it arrived is unknown. ``reply`` goes where the endpoint looks for it."""
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
        """By request-reply: sent again, on the same reply subject, until an answer comes."""
        headers.setdefault("reply", self.reply())
        name = headers["reply"].rpartition(".")[2]
        headers.setdefault("Nats_Msg_Id", f"ask-{name}-{time.monotonic_ns()}")
        return await self.insist(
            lambda: self.publish("api", verb, key, body, **headers), lambda: self.answer_of(name)
        )

    async def insist(self, send: Callable[[], Any], found: Callable[[], T]) -> T:
        """``send`` again and again until there is a true value of ``found``."""
        end_s, pause_s = time.monotonic() + DEADLINE_S, AGAIN_S
        while True:
            await send()
            again_s = time.monotonic() + pause_s
            pause_s = min(1.5 * pause_s, AGAIN_S_MAX)
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
async def stock(
    server: Server, realm: str, role: Role | Literal["admin"] = Role.CLIENT
) -> AsyncIterator[Stock]:
    """A connected client that comes back by itself; ``admin`` may send what no role may."""
    admin_url = server.admin_url if isinstance(server, EmbeddedServer) else ""
    refused: list[str] = []

    async def note(error: Exception) -> None:
        """A server that was killed by the test is no news; a missing permission is."""
        if "permissions violation" in str(error).lower():
            refused.append(str(error))

    if role == "admin":
        client = await _connected(admin_url, note, f"_INBOX.{realm}.admin")
    else:
        client = await _connected(server.url_for(role, realm=realm), note)
    connected = Stock(client, realm, admin_url)
    await connected.open()
    try:
        yield connected
    finally:
        await connected.close()
    assert not refused, refused


async def _connected(url: str, on_error: Callable[[Exception], Any], inbox: str = "") -> Any:
    return await nats.connect(
        url,
        max_reconnect_attempts=-1,
        reconnect_time_wait=0.1,
        error_cb=on_error,
        inbox_prefix=inbox or inbox_prefix(url),
    )


async def _silent(_: Exception) -> None:
    """A server that was killed by the test is no news."""


def inbox_prefix(url: str) -> str:
    """The prefix of the reply subjects that the user of a URL may subscribe to."""
    return f"_INBOX.{unquote(urlsplit(url).username or '')}"


def data(body: object) -> bytes:
    if isinstance(body, bytes):
        return body
    return b"" if body is None else json.dumps(body).encode()


def spelled(headers: dict[str, str]) -> dict[str, str] | None:
    """Keyword arguments as headers: ``Nats_Msg_Id`` is ``Nats-Msg-Id``."""
    return {name.replace("_", "-"): value for name, value in headers.items()} or None
