"""A handle on a run: follow it, wait for it, end it.

The run's id becomes known from the fact that accepted it, or from its reply, whichever arrives
first. The run does not depend on its handle.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import aclosing
from typing import Any, Final, Protocol

from rookery.bus.client.retrying_request import RetryingRequest
from rookery.schemas.envelope import Fact
from rookery.schemas.errors import CodedError, Failed
from rookery.schemas.facts import session as of_session
from rookery.schemas.replies import RunAnswer

__all__ = ["Fields", "Handle", "no_reply"]

Fields = dict[str, Any]

_TERMINAL_FACTS: Final = (
    of_session.RunCommitted,
    of_session.RunFailed,
    of_session.RunRolledBack,
    of_session.InputCancelled,
    of_session.InputRefused,
)
"""The last facts of a run."""


class HandleClient(Protocol):
    """The part of a client that a handle needs."""

    def events(
        self, family: str | None = None, key: str | None = None, run: str | None = None,
        after: int = 0,
    ) -> AsyncGenerator[Fields, None]: ...  # fmt: skip

    async def cancel(
        self, session: str, run_id: str, *, reason: str = "", now: bool = False
    ) -> Fields: ...

    async def complete_result(self, reply: Mapping[str, Any]) -> RunAnswer:
        """The result with the parts that were too large for the reply."""

    def spawn(self, work: Coroutine[Any, Any, Fields]) -> asyncio.Task[Fields]:
        """Run ``work`` until it ends or the client is closed."""


class Handle:
    """One run. ``message_id`` is its idempotency key."""

    def __init__(
        self,
        client: HandleClient,
        session: str,
        message_id: str,
        request: RetryingRequest,
        after: int,
    ) -> None:
        self.session, self.message_id = session, message_id
        self.run_id = ""
        """Empty at first; ``accepted`` waits for it."""
        self._client, self._request, self._after = client, request, after
        self._reply_task: asyncio.Task[Fields] | None = None
        self._events_after: int | None = None

    @property
    def last_error(self) -> CodedError | None:
        """Why there is no reply at present, if known."""
        return self._request.last_error

    def set_max_absence(self, absence_s_max: float) -> None:
        """Set how long the run waits for any node to appear."""
        self._request.absence_s_max = absence_s_max

    async def result(self, timeout_s: float | None = None) -> RunAnswer:
        """The run's result, however it ended; ``Refused`` if it was not accepted."""
        return await self._client.complete_result(await self.reply(timeout_s))

    async def reply(self, timeout_s: float | None = None) -> Fields:
        """The final reply as sent; for a run that no node drives, a receipt."""
        try:
            async with asyncio.timeout(timeout_s):
                reply = await asyncio.shield(self.reply_task())
        except TimeoutError:
            raise no_reply(f"run {self.message_id}", timeout_s) from None
        self.run_id = self.run_id or str(reply.get("run_id", ""))
        return reply

    async def accepted(self, timeout_s: float | None = None) -> str:
        """The run's id, once the session has accepted it; ``Refused`` if it does not."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._locate()
        except TimeoutError:
            raise no_reply(f"run {self.message_id}", timeout_s) from None
        return self.run_id

    async def cancel(self, *, now: bool = True, reason: str = "") -> Fields:
        """End the run at once, or at its next boundary if not ``now``. The default of
        ``Client.cancel`` and of the verb ``cancel`` is the boundary."""
        await self.accepted()
        return await self._client.cancel(self.session, self.run_id, reason=reason, now=now)

    async def events(self) -> AsyncGenerator[Fields, None]:
        """The facts of this run, from its acceptance to its last one."""
        after = await self._locate()
        facts = self._client.events(key=self.session, run=self.run_id, after=after)
        async with aclosing(facts):
            async for fact in facts:
                yield fact
                if _is_fact(fact, *_TERMINAL_FACTS):
                    return

    def reply_task(self) -> asyncio.Task[Fields]:
        """Start repeating the request until its reply arrives."""
        if self._reply_task is None:
            self._reply_task = self._client.spawn(self._request.result())
        return self._reply_task

    async def _locate(self) -> int:
        """Find the run's id, and a sequence below all its facts."""
        if self._events_after is None:
            self._events_after = await self._find_start()
        return self._events_after

    async def _find_start(self) -> int:
        answering, finding = self.reply_task(), asyncio.create_task(self._find_fact())
        try:
            await asyncio.wait({answering, finding}, return_when=asyncio.FIRST_COMPLETED)
            if finding.done():
                fact = finding.result()
                self.run_id = str(fact["run"])
                return self._after if _is_fact(fact, of_session.InputAccepted) else 0
            self.run_id = str(answering.result()["run_id"])
            return 0
        finally:
            finding.cancel()

    async def _find_fact(self) -> Fields:
        """The first fact of a run that this message caused: its acceptance, or a request for the
        reply of a run that was accepted earlier."""
        facts = self._client.events("session", self.session, after=self._after)
        async with aclosing(facts):
            async for fact in facts:
                if self.message_id in fact.get("cause", ()) and fact.get("run"):
                    return fact
        raise AssertionError("facts never end")


def _is_fact(fact: Fields, *kinds: type[Fact]) -> bool:
    """Whether a fact is of these kinds, in any version."""
    tags = (str(kind.__struct_config__.tag) for kind in kinds)
    return _unversioned(str(fact["type"])) in map(_unversioned, tags)


def _unversioned(tag: str) -> str:
    return tag.rpartition(".")[0]


def no_reply(request: str, timeout_s: float | None) -> Failed:
    return Failed(
        "NO_ANSWER", f"{request}: no reply within {timeout_s} s", hint="repeat it with the same id"
    )
