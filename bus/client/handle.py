"""A run that was handed over: what is known of it, and how it is followed, awaited and ended.

Its id is known from the fact that accepted it, or from its answer, whichever comes first. The run
goes on whatever becomes of its handle.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import aclosing
from typing import Any, Final, Protocol

from rookery.bus.client.retrying_request import Asking
from rookery.schemas.commands import RunAnswer
from rookery.schemas.errors import CodedError, Failed

__all__ = ["Fields", "Handle", "no_answer"]

Fields = dict[str, Any]

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
_ACCEPTED: Final = "session.input_accepted"


class Runs(Protocol):
    """What a handle needs of the client it came from."""

    def events(
        self, family: str | None = None, key: str | None = None, run: str | None = None,
        after: int = 0,
    ) -> AsyncGenerator[Fields, None]: ...  # fmt: skip

    async def cancel(
        self, session: str, run_id: str, *, reason: str = "", now: bool = False
    ) -> Fields: ...

    async def whole(self, told: Mapping[str, Any]) -> RunAnswer:
        """The answer with all that it only names."""

    def keep(self, work: Coroutine[Any, Any, Fields]) -> asyncio.Task[Fields]:
        """Do ``work`` until it is done or the client is closed."""


class Handle:
    """One run. ``message_id`` is its idempotency key."""

    def __init__(
        self, client: Runs, session: str, message_id: str, asking: Asking, after: int
    ) -> None:
        self.session, self.message_id = session, message_id
        self.run_id = ""
        """Empty until it is known: ``accepted`` waits for it."""
        self._client, self._asking, self._after = client, asking, after
        self._answering: asyncio.Task[Fields] | None = None
        self._begins_after: int | None = None

    @property
    def setback(self) -> CodedError | None:
        """Why nobody answers just now, if that is known."""
        return self._asking.setback

    def bear(self, absence_s_max: float) -> None:
        """From now on, so long may nobody be there to answer."""
        self._asking.absence_s_max = absence_s_max

    async def result(self, timeout_s: float | None = None) -> RunAnswer:
        """What the run came to, whichever way it ended; ``Refused`` if it was never accepted."""
        return await self._client.whole(await self.reply(timeout_s))

    async def reply(self, timeout_s: float | None = None) -> Fields:
        """The node's last word as it was told: of a run that somebody else drives, a receipt."""
        try:
            async with asyncio.timeout(timeout_s):
                told = await asyncio.shield(self.answering())
        except TimeoutError:
            raise no_answer(f"run {self.message_id}", timeout_s) from None
        self.run_id = self.run_id or str(told.get("run_id", ""))
        return told

    async def accepted(self, timeout_s: float | None = None) -> str:
        """The run's id, as soon as the session owes it an end; ``Refused`` if it does not."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._place()
        except TimeoutError:
            raise no_answer(f"run {self.message_id}", timeout_s) from None
        return self.run_id

    async def cancel(self, *, now: bool = True, reason: str = "") -> Fields:
        """End the run: at once or, if not ``now``, at its next boundary. ``Client.cancel`` and
        the verb ``cancel`` wait for the boundary unless told otherwise."""
        await self.accepted()
        return await self._client.cancel(self.session, self.run_id, reason=reason, now=now)

    async def events(self) -> AsyncGenerator[Fields, None]:
        """The facts of this run, from its acceptance on, ending with its last one."""
        after = await self._place()
        facts = self._client.events(key=self.session, run=self.run_id, after=after)
        async with aclosing(facts):
            async for fact in facts:
                yield fact
                if _kind(fact) in _LAST_FACTS:
                    return

    def answering(self) -> asyncio.Task[Fields]:
        """From now on the request is repeated until it is answered."""
        if self._answering is None:
            self._answering = self._client.keep(self._asking.answered())
        return self._answering

    async def _place(self) -> int:
        """Learn the run's id; the sequence above which its facts stand."""
        if self._begins_after is None:
            self._begins_after = await self._placed()
        return self._begins_after

    async def _placed(self) -> int:
        answering, finding = self.answering(), asyncio.create_task(self._find())
        try:
            await asyncio.wait({answering, finding}, return_when=asyncio.FIRST_COMPLETED)
            if finding.done():
                fact = finding.result()
                self.run_id = str(fact["run"])
                return self._after if _kind(fact) == _ACCEPTED else 0
            self.run_id = str(answering.result()["run_id"])
            return 0
        finally:
            finding.cancel()

    async def _find(self) -> Fields:
        """The first fact that our message has caused and that is of a run: it was accepted, or had
        been before and is now to be told once more."""
        facts = self._client.events("session", self.session, after=self._after)
        async with aclosing(facts):
            async for fact in facts:
                if self.message_id in fact.get("cause", ()) and fact.get("run"):
                    return fact
        raise AssertionError("facts never end")


def _kind(fact: Fields) -> str:
    return str(fact["type"]).rpartition(".")[0]


def no_answer(asked: str, timeout_s: float | None) -> Failed:
    return Failed(
        "NO_ANSWER", f"{asked}: no answer within {timeout_s} s", hint="ask again with the same id"
    )
