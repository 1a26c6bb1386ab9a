"""The handle of a submitted run: the client follows, awaits and cancels the run with it.

The run's id comes from the fact that accepted it or from the reply, whichever is first. The run
does not depend on its handle.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import aclosing
from typing import Any, Final, Protocol

from rookery.bus.client.output import OutputFeed, PrintedText
from rookery.bus.client.retrying_request import RetryingRequest
from rookery.schemas.codec import fact_name
from rookery.schemas.errors import CodedError, Failed
from rookery.schemas.facts.run_progress import LAST_FACTS
from rookery.schemas.facts.session import InputAccepted
from rookery.schemas.replies import RunAnswer

__all__ = ["Fields", "Handle", "no_reply"]

Fields = dict[str, Any]

_ACCEPTED: Final = fact_name(InputAccepted)


class HandleClient(Protocol):
    """The methods of its client that a handle uses."""

    def events(
        self, family: str | None = None, key: str | None = None, run: str | None = None,
        after: int = 0,
    ) -> AsyncGenerator[Fields, None]: ...  # fmt: skip

    async def cancel(
        self, session: str, run_id: str, *, reason: str = "", now: bool = False
    ) -> Fields: ...

    async def follow_output(self, session: str) -> OutputFeed: ...

    async def complete_result(self, reply: Mapping[str, Any], /) -> RunAnswer:
        """The result of a reply; a result in the blob store is fetched."""

    def spawn(self, work: Coroutine[Any, Any, Fields]) -> asyncio.Task[Fields]:
        """Run ``work`` as a task until it is done or the client is closed."""


class Handle:
    """One run. ``message_id`` is its idempotency key."""

    def __init__(
        self,
        client: HandleClient,
        session: str,
        message_id: str,
        request: RetryingRequest,
        after: int,
        *,
        output: OutputFeed | None,
    ) -> None:
        self.session, self.message_id = session, message_id
        self.run_id = ""
        """Empty until it is known; ``accepted`` waits for it."""
        self._client, self._request, self._after = client, request, after
        self._reply_task: asyncio.Task[Fields] | None = None
        self._events_after: int | None = None
        self._output = output

    @property
    def last_error(self) -> CodedError | None:
        """Why the request has no reply yet, if that is known."""
        return self._request.last_error

    def set_max_absence(self, absence_s_max: float) -> None:
        """From now on, fail when no node has replied for this long."""
        self._request.absence_s_max = absence_s_max

    async def result(self, timeout_s: float | None = None) -> RunAnswer:
        """The result of the run, also of a failed one; ``Refused`` if it was not accepted."""
        return await self._client.complete_result(await self.reply(timeout_s))

    async def reply(self, timeout_s: float | None = None) -> Fields:
        """The node's final reply; if the run's driver is outside, it is a receipt."""
        try:
            async with asyncio.timeout(timeout_s):
                reply = await asyncio.shield(self.reply_task())
        except TimeoutError:
            raise no_reply(f"run {self.message_id}", timeout_s) from None
        self.run_id = self.run_id or str(reply.get("run_id", ""))
        return reply

    async def accepted(self, timeout_s: float | None = None) -> str:
        """The run's id, as soon as the session has accepted it; ``Refused`` if it refuses."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._locate()
        except TimeoutError:
            raise no_reply(f"run {self.message_id}", timeout_s) from None
        return self.run_id

    async def cancel(self, *, now: bool = True, reason: str = "") -> Fields:
        """End the run now, or at its next boundary if ``now`` is false.

        The default of ``Client.cancel`` and of the verb ``cancel`` is the next boundary.
        """
        await self.accepted()
        return await self._client.cancel(self.session, self.run_id, reason=reason, now=now)

    async def events(self) -> AsyncGenerator[Fields, None]:
        """The facts of this run, from its acceptance to its last fact."""
        after = await self._locate()
        facts = self._client.events(key=self.session, run=self.run_id, after=after)
        async with aclosing(facts):
            async for fact in facts:
                yield fact
                if _name_of(fact) in LAST_FACTS:
                    return

    async def output(self) -> AsyncGenerator[PrintedText, None]:
        """What the run prints, while it goes on; the result has the whole. Pieces that were printed
        before the first call are missing, unless the run was begun with ``output``."""
        feed = self._output or await self._client.follow_output(self.session)
        self._output = None
        try:
            replying = self.reply_task()
            await self.accepted()
            async with aclosing(feed.pieces(self.run_id, replying)) as pieces:
                async for piece in pieces:
                    yield piece
        finally:
            await feed.close()

    def reply_task(self) -> asyncio.Task[Fields]:
        """The task that repeats the request until it has a reply; the first call starts it."""
        if self._reply_task is None:
            self._reply_task = self._client.spawn(self._request.result())
        return self._reply_task

    async def _locate(self) -> int:
        """Learn the run's id; return a sequence below its first fact."""
        if self._events_after is None:
            self._events_after = await self._find_start()
        return self._events_after

    async def _find_start(self) -> int:
        replying, finding = self.reply_task(), asyncio.create_task(self._find_fact())
        try:
            await asyncio.wait({replying, finding}, return_when=asyncio.FIRST_COMPLETED)
            if finding.done():
                fact = finding.result()
                self.run_id = str(fact["run"])
                return self._after if _name_of(fact) == _ACCEPTED else 0
            self.run_id = str(replying.result()["run_id"])
            return 0
        finally:
            finding.cancel()

    async def _find_fact(self) -> Fields:
        """The first fact of a run that this message has caused.

        It accepts the run, or asks for another reply if the run was accepted before.
        """
        facts = self._client.events("session", self.session, after=self._after)
        async with aclosing(facts):
            async for fact in facts:
                if self.message_id in fact.get("cause", ()) and fact.get("run"):
                    return fact
        raise AssertionError("facts never end")


def _name_of(fact: Fields) -> str:
    return str(fact["type"]).rpartition(".")[0]


def no_reply(request: str, timeout_s: float | None) -> Failed:
    return Failed(
        "NO_ANSWER",
        f"{request}: no answer within {timeout_s} s",
        hint="it may still take effect: look first (rookery runs list, rookery approvals list), or "
        "ask again with the same id",
    )
