"""The messages of a server on their way to the SDK: bounded in rate, and with an end that the
connection sees."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from types import TracebackType
from typing import Any, Final, Self

import anyio
import mcp_types as types
from mcp.client._transport import ReadStream
from mcp.shared.message import SessionMessage

__all__ = ["CREATED_TASK", "MESSAGE_BYTES_MAX", "MessageStream", "ServerEnded", "ServerFault"]

MESSAGE_BYTES_MAX: Final = 32 << 20
"""Of one message of a server; a larger one ends the connection."""
BURST: Final = 2_000
RATE: Final = 1_000
"""Messages a second after a burst. A server that sends more waits, as its pipe or socket fills."""

CREATED_TASK: Final = "rookery/task"
"""In ``_meta`` of a result: the task by which a call goes on."""


class ServerFault(Exception):
    """What a server did that ends its connection; ``str`` continues "the server ..."."""


class ServerEnded(ServerFault):
    """The server has ended by itself."""


class MessageStream:
    """A stream of messages, as the SDK reads it."""

    def __init__(self, inner: ReadStream[SessionMessage | Exception]) -> None:
        self._inner = inner
        self._tokens, self._at_s = float(BURST), anyio.current_time()
        self.fault: ServerFault | None = None
        self.on_fault: Callable[[], None] = lambda: None
        """Called once, when there is a fault."""

    def fail(self, fault: ServerFault) -> None:
        """The connection is of no use any more."""
        if self.fault is None:
            self.fault = fault
            self.on_fault()

    async def throttle(self) -> None:
        """Wait until the server may send one more message."""
        now_s = anyio.current_time()
        self._tokens = min(BURST, self._tokens + (now_s - self._at_s) * RATE) - 1
        self._at_s = now_s
        if self._tokens < 0:
            await anyio.sleep(-self._tokens / RATE)

    @property
    def last_context(self) -> Context | None:
        """Of the sender, which the SDK passes on."""
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        item = await self._inner.receive()
        await self.throttle()
        if isinstance(item, SessionMessage) and isinstance(item.message, types.JSONRPCResponse):
            _move_task(item.message.result)
        return item

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        return await self._inner.__aexit__(kind, error, trace)


def _move_task(result: dict[str, Any]) -> None:
    """Turn the answer to a call that goes on as a task into a result without contents, because the
    SDK takes nothing else for an answer to a call."""
    if "content" not in result and isinstance(task := result.get("task"), dict):
        del result["task"]
        meta = result.get("_meta")
        result["_meta"] = {**(meta if isinstance(meta, dict) else {}), CREATED_TASK: task}
        result["content"] = []
