"""The door for programs: submit runs, ask, and follow what happens, over NATS and nothing else.

Every request has an id and is repeated under it until it is answered, so a lost answer, a dying
node or a server that restarts never makes anything happen twice. It owns no rules and decodes
facts to plain dictionaries: what a fact means is the reader's business.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import msgspec

from rookery.bus.clock import SystemClock, entropy
from rookery.bus.connection import Connection, Outgoing
from rookery.bus.feed import JetStreamFeed
from rookery.bus.headers import command_headers
from rookery.bus.inbox import JetStreamInbox
from rookery.bus.ports import Filter, Stored
from rookery.bus.replies import Replies, Reply, decode_answer
from rookery.bus.store import default_store, find_running
from rookery.bus.subjects import Subjects
from rookery.schemas.codec import encode_json
from rookery.schemas.commands import Cancel
from rookery.schemas.errors import CodedError, Failed
from rookery.schemas.ids import check_command_id, check_session_id, uuid7
from rookery.schemas.run import RunRequest

__all__ = ["Client", "Handle", "connect"]

Fields = dict[str, Any]

_TRY_AGAIN: Final = frozenset({"NODE_DRAINING", "NODE_FAILED", "PARTITION_UNOWNED"})
_PAUSE_S_MIN, _PAUSE_S_MAX = 0.05, 1.0
_PATIENCE_S_MIN, _PATIENCE_S_MAX = 1.0, 16.0
"""How long an answer may be silent before the request is repeated."""
_RESUBMIT_S_MIN, _RESUBMIT_S_MAX = 30.0, 300.0
"""The same for a submitted run: it is durable, only its answer may have been lost."""

_LAST_FACTS: Final = frozenset(
    {
        "session.run_committed",
        "session.run_failed",
        "session.run_rolled_back",
        "session.input_cancelled",
        "session.input_refused",
    }
)
"""Nothing about a run follows these."""


def connect(url: str | None = None, *, realm: str = "default", token: str | None = None) -> Client:
    """A client to be opened: ``async with connect() as client``.

    Without ``url``: ``NATS_URL``, else the embedded server at work on ``ROOKERY_STORE`` or the
    default store; one that is just starting is waited for.
    """
    store = Path(os.environ.get("ROOKERY_STORE") or default_store())
    url = url or os.environ.get("NATS_URL") or find_running(store)
    if url is None:
        raise Failed(
            "SERVER_UNREACHABLE",
            f"no url, no NATS_URL, and no server is running on {store}",
            hint="start one: rookery up",
        )
    return Client(url, realm=realm, token=token or "")


class Client:
    """One connection to one realm, used on one event loop."""

    def __init__(self, url: str, *, realm: str = "default", token: str = "") -> None:
        self._subjects = Subjects(realm)
        self._connection = Connection(url, token=token, name="rookery-client")
        self._replies = Replies(self._connection)
        self._inbox = JetStreamInbox(self._connection, self._subjects)
        self._feed = JetStreamFeed(self._connection, self._subjects)

    async def open(self) -> None:
        """Connect; ``Failed`` SERVER_UNREACHABLE or ``Refused`` UNAUTHORIZED."""
        await self._connection.open()
        await self._replies.open()

    async def close(self) -> None:
        """Disconnect for good. What was submitted goes on without us."""
        await self._replies.close()
        await self._connection.close()

    async def __aenter__(self) -> Client:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def submit(
        self,
        session: str,
        request: RunRequest | Mapping[str, Any] | str,
        *,
        message_id: str | None = None,
        mode: str = "queue",
    ) -> Handle:
        """Hand a run over for good: it is stored when this returns, and needs no client then."""
        reply = self._replies.expect()
        message_id = _id(message_id)
        submit = partial(
            self._inbox.submit,
            "run",
            check_session_id(session),
            _run_body(session, request),
            message_id=message_id,
            mode=mode,
            reply_to=reply.subject,
        )
        await submit()
        return Handle(self, session, message_id, submit, reply)

    async def ask(
        self,
        verb: str,
        key: str,
        body: object = None,
        *,
        message_id: str | None = None,
        timeout_s: float = 30.0,
    ) -> Fields:
        """The durable answer, or what was answered instead raised as ``Refused`` or ``Failed``.

        Repeated under its id while nobody answers, until ``timeout_s`` is over.
        """
        reply = self._replies.expect()
        question = Outgoing(
            self._subjects.request(verb, key),
            b"" if body is None else encode_json(body),
            reply.subject,
            command_headers(_id(message_id)),
        )
        asking = _Asking(self._connection, question, reply)
        try:
            async with asyncio.timeout(timeout_s):
                return await asking.answered()
        except TimeoutError:
            if not self._connection.connected:
                raise Failed("SERVER_UNREACHABLE", "the connection to the server is lost") from None
            raise asking.setback or _no_answer(f"{verb} {key}", timeout_s) from None

    async def cancel(self, session: str, run_id: str, *, reason: str = "") -> Fields:
        """Withdraw an input that has not started, or end a run at its next boundary."""
        return await self.ask("cancel", session, Cancel(run_id=run_id, reason=reason))

    async def sessions(self) -> Fields:
        """The sessions of the realm."""
        return await self.ask("sessions", "all")

    async def session(self, session: str) -> Fields:
        """What a session is just now."""
        return await self.ask("session", session)

    async def events(
        self,
        family: str | None = None,
        key: str | None = None,
        run: str | None = None,
        after: int = 0,
    ) -> AsyncGenerator[Fields, None]:
        """Facts above sequence ``after``, then live ones, each with its ``seq`` and ``subject``.

        Without loss, doubles or end; the last ``seq`` seen is the cursor to go on from.
        """
        async with aclosing(self._feed.follow(Filter(family, key, run), after)) as pages:
            async for page in pages:
                for stored in page:
                    for fact in _facts(stored, self._subjects):
                        if run is None or fact.get("run") == run:
                            yield fact


class Handle:
    """A run that was submitted. It goes on whatever becomes of us."""

    def __init__(
        self,
        client: Client,
        session: str,
        message_id: str,
        submit: Callable[[], Awaitable[int]],
        reply: Reply,
    ) -> None:
        self.session, self.message_id = session, message_id
        self._client, self._submit, self._reply = client, submit, reply
        self._answer: Fields | None = None

    async def run_reply(self, *, timeout_s: float | None = None) -> Fields:
        """How the run ended.

        Answers are not durable: after a reconnect, and now and then in a long silence, the same
        input is submitted again, which changes nothing but makes the node answer again.
        """
        if self._answer is None:
            try:
                async with asyncio.timeout(timeout_s):
                    self._answer = await self._answered()
            except TimeoutError:
                raise _no_answer(f"run {self.message_id}", timeout_s) from None
        return self._answer

    async def events(self) -> AsyncGenerator[Fields, None]:
        """The facts of this run, from its acceptance on, ending with its last one.

        A run that is refused leaves no facts and keeps this waiting; ``run_reply`` tells.
        """
        run: str | None = None
        async with aclosing(self._client.events(key=self.session)) as facts:
            async for fact in facts:
                if run is None and self.message_id in fact.get("cause", ()):
                    run = fact.get("run")
                if run is None or fact.get("run") != run:
                    continue
                yield fact
                if fact["type"].rpartition(".")[0] in _LAST_FACTS:
                    return

    async def _answered(self) -> Fields:
        patience_s = _RESUBMIT_S_MIN
        while (message := await self._reply.next(patience_s)) is None:
            await self._submit()
            patience_s = min(2 * patience_s, _RESUBMIT_S_MAX)
        return decode_answer(message)


class _Asking:
    """A request under way."""

    def __init__(self, connection: Connection, question: Outgoing, reply: Reply) -> None:
        self._connection, self._question, self._reply = connection, question, reply
        self.setback: CodedError | None = None
        """Why there is no answer yet, if anybody said so."""

    async def answered(self) -> Fields:
        """The answer, however often it takes to ask."""
        pause_s, patience_s = _PAUSE_S_MIN, _PATIENCE_S_MIN
        while True:
            self._connection.send([self._question])
            message = await self._reply.next(patience_s)
            if message is None:
                patience_s = min(2 * patience_s, _PATIENCE_S_MAX)
                continue
            try:
                return decode_answer(message)
            except Failed as setback:
                if setback.code not in _TRY_AGAIN:
                    raise
                self.setback = setback
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)


def _id(given: str | None) -> str:
    return uuid7(SystemClock().now_ms(), entropy(10)) if given is None else check_command_id(given)


def _run_body(session: str, request: RunRequest | Mapping[str, Any] | str) -> bytes:
    if isinstance(request, str):
        request = RunRequest(session_id=session, code=request)
    elif isinstance(request, RunRequest) and request.session_id == RunRequest().session_id:
        request = msgspec.structs.replace(request, session_id=session)
    return encode_json(request)


def _facts(stored: Stored, subjects: Subjects) -> list[Fields]:
    """A message's facts as they were written; a sealed body is one of its own."""
    body = msgspec.json.decode(stored.body)
    place = {"seq": stored.sequence, "subject": subjects.fact(stored.entity)}
    return [fact | place for fact in (body if isinstance(body, list) else [body])]


def _no_answer(asked: str, timeout_s: float | None) -> Failed:
    return Failed(
        "NO_ANSWER", f"{asked}: no answer within {timeout_s} s", hint="ask again with the same id"
    )
