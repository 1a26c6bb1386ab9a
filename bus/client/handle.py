"""A run that was handed over: what is known of it, and how it is followed, awaited and ended.

Its id is known from the fact that accepted it, or from its answer, whichever comes first. The run
goes on whatever becomes of its handle.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import aclosing
from typing import Any, Final, Protocol

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
    """What a handle needs of the client it came from."""

    def events(
        self, family: str | None = None, key: str | None = None, run: str | None = None,
        after: int = 0,
    ) -> AsyncGenerator[Fields, None]: ...  # fmt: skip

    async def cancel(
        self, session: str, run_id: str, *, reason: str = "", now: bool = False
    ) -> Fields: ...

    async def complete_result(self, told: Mapping[str, Any]) -> RunAnswer:
        """The answer with all that it only names."""

    def spawn(self, work: Coroutine[Any, Any, Fields]) -> asyncio.Task[Fields]:
        """Do ``work`` until it is done or the client is closed."""


class Handle:
    """One run. ``message_id`` is its idempotency key."""

    def __init__(
        self,
        client: HandleClient,
        session: str,
        message_id: str,
        asking: RetryingRequest,
        after: int,
    ) -> None:
        self.session, self.message_id = session, message_id
        self.run_id = ""
        """Empty until it is known: ``accepted`` waits for it."""
        self._client, self._request, self._after = client, asking, after
        self._reply_task: asyncio.Task[Fields] | None = None
        self._events_after: int | None = None

    @property
    def last_error(self) -> CodedError | None:
        """Why nobody answers just now, if that is known."""
        return self._request.last_error

    def set_max_absence(self, absence_s_max: float) -> None:
        """From now on, so long may nobody be there to answer."""
        self._request.absence_s_max = absence_s_max

    async def result(self, timeout_s: float | None = None) -> RunAnswer:
        """What the run came to, whichever way it ended; ``Refused`` if it was never accepted."""
        return await self._client.complete_result(await self.reply(timeout_s))

    async def reply(self, timeout_s: float | None = None) -> Fields:
        """The node's last word as it was told: of a run that somebody else drives, a receipt."""
        try:
            async with asyncio.timeout(timeout_s):
                told = await asyncio.shield(self.reply_task())
        except TimeoutError:
            raise no_reply(f"run {self.message_id}", timeout_s) from None
        self.run_id = self.run_id or str(told.get("run_id", ""))
        return told

    async def accepted(self, timeout_s: float | None = None) -> str:
        """The run's id, as soon as the session owes it an end; ``Refused`` if it does not."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._locate()
        except TimeoutError:
            raise no_reply(f"run {self.message_id}", timeout_s) from None
        return self.run_id

    async def cancel(self, *, now: bool = True, reason: str = "") -> Fields:
        """End the run: at once or, if not ``now``, at its next boundary. ``Client.cancel`` and
        the verb ``cancel`` wait for the boundary unless told otherwise."""
        await self.accepted()
        return await self._client.cancel(self.session, self.run_id, reason=reason, now=now)

    async def events(self) -> AsyncGenerator[Fields, None]:
        """The facts of this run, from its acceptance on, ending with its last one."""
        after = await self._locate()
        facts = self._client.events(key=self.session, run=self.run_id, after=after)
        async with aclosing(facts):
            async for fact in facts:
                yield fact
                if _name_of(fact) in LAST_FACTS:
                    return

    def reply_task(self) -> asyncio.Task[Fields]:
        """From now on the request is repeated until it is answered."""
        if self._reply_task is None:
            self._reply_task = self._client.spawn(self._request.result())
        return self._reply_task

    async def _locate(self) -> int:
        """Learn the run's id; the sequence above which its facts stand."""
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
                return self._after if _name_of(fact) == _ACCEPTED else 0
            self.run_id = str(answering.result()["run_id"])
            return 0
        finally:
            finding.cancel()

    async def _find_fact(self) -> Fields:
        """The first fact that our message has caused and that is of a run: it was accepted, or had
        been before and is now to be told once more."""
        facts = self._client.events("session", self.session, after=self._after)
        async with aclosing(facts):
            async for fact in facts:
                if self.message_id in fact.get("cause", ()) and fact.get("run"):
                    return fact
        raise AssertionError("facts never end")


def _name_of(fact: Fields) -> str:
    return str(fact["type"]).rpartition(".")[0]


def no_reply(asked: str, timeout_s: float | None) -> Failed:
    return Failed(
        "NO_ANSWER", f"{asked}: no answer within {timeout_s} s", hint="ask again with the same id"
    )
