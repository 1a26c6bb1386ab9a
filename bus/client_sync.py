"""The client for programs without an event loop: the same calls, waiting.

The loop runs on a thread of its own, so calls may come from any thread, also from several at once;
everything that is more than waiting is ``rookery.bus.client``'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Mapping
from types import TracebackType
from typing import Any

from rookery.bus.client import Client, Fields, Handle, connect
from rookery.bus.loop import LoopThread
from rookery.schemas.run import RunRequest

__all__ = ["SyncClient", "SyncHandle", "connect_sync"]


def connect_sync(
    url: str | None = None, *, realm: str = "default", token: str | None = None
) -> SyncClient:
    """A connected client, for ``with connect_sync() as client``; the url as for ``connect``."""
    return SyncClient(connect(url, realm=realm, token=token))


class SyncClient:
    """``Client``, waiting."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._thread = LoopThread("rookery-client")
        try:
            self._thread.run(client.open())
        except BaseException:
            self._thread.close()
            raise

    def close(self) -> None:
        """Disconnect for good. What was submitted goes on without us."""
        self._thread.run(self._client.close())
        self._thread.close()

    def __enter__(self) -> SyncClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def submit(
        self,
        session: str,
        request: RunRequest | Mapping[str, Any] | str,
        *,
        message_id: str | None = None,
        mode: str = "queue",
    ) -> SyncHandle:
        work = self._client.submit(session, request, message_id=message_id, mode=mode)
        return SyncHandle(self._thread, self._thread.run(work))

    def ask(
        self,
        verb: str,
        key: str,
        body: object = None,
        *,
        message_id: str | None = None,
        timeout_s: float = 30.0,
    ) -> Fields:
        work = self._client.ask(verb, key, body, message_id=message_id, timeout_s=timeout_s)
        return self._thread.run(work)

    def cancel(self, session: str, run_id: str, *, reason: str = "") -> Fields:
        return self._thread.run(self._client.cancel(session, run_id, reason=reason))

    def sessions(self) -> Fields:
        return self._thread.run(self._client.sessions())

    def session(self, session: str) -> Fields:
        return self._thread.run(self._client.session(session))

    def events(
        self,
        family: str | None = None,
        key: str | None = None,
        run: str | None = None,
        after: int = 0,
    ) -> Generator[Fields, None, None]:
        return _each(self._thread, self._client.events(family, key, run, after))


class SyncHandle:
    """``Handle``, waiting."""

    def __init__(self, thread: LoopThread, handle: Handle) -> None:
        self._thread, self._handle = thread, handle
        self.session, self.message_id = handle.session, handle.message_id

    def run_reply(self, *, timeout_s: float | None = None) -> Fields:
        return self._thread.run(self._handle.run_reply(timeout_s=timeout_s))

    def events(self) -> Generator[Fields, None, None]:
        return _each(self._thread, self._handle.events())


def _each(thread: LoopThread, facts: AsyncGenerator[Fields, None]) -> Generator[Fields, None, None]:
    """``facts`` one by one; an interrupted wait is called off before the source is closed."""
    step: asyncio.Task[Any] | None = None

    async def advance() -> Fields | None:
        nonlocal step
        step = asyncio.current_task()
        return await anext(facts, None)

    async def leave() -> None:
        if step is not None and not step.done():
            step.cancel()
            await asyncio.gather(step, return_exceptions=True)
        await facts.aclose()

    try:
        while (fact := thread.run(advance())) is not None:
            yield fact
    finally:
        if not thread.loop.is_closed():
            thread.run(leave())
