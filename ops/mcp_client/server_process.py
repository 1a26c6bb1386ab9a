"""The process of a server on this machine: its start, its end, and the messages on its streams.

A transport of the SDK in place of its own one, which bounds no line, shows the server our standard
error and lets it outlive a node that is killed. Used on the loop of the connections.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Final, NamedTuple, Self

import anyio
import mcp_types as types
from mcp.client import Transport
from mcp.shared.message import SessionMessage

from rookery.ops.mcp_client.message_stream import (
    MESSAGE_BYTES_MAX,
    MessageStream,
    ServerEnded,
    ServerFault,
)
from rookery.schemas.errors import Refused

__all__ = ["LINE_MAX", "ServerLaunch", "ServerLog", "stdio_transport"]

_GUARD: Final = Path(__file__).with_name("process_guard.py")
_INHERITED: Final = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER")
"""The variables of the node that a server gets; all others are the node's own affair."""
CLOSE_S: Final = 2.0
"""For the server to end after its input has, and again after it was asked to."""
GARBAGE_MAX: Final = 100
"""Lines in a row that are no messages; a banner is some, a program of another kind is more."""
_CHUNK: Final = 64 << 10

# --- log ------------------------------------------------------------------------------------------

LOG_LINES_MAX: Final = 1_000
LINE_MAX: Final = 2_000
CHUNK_LINES_MAX: Final = 100
"""Of what is read at once; the lines before these are dropped."""
FLOOD_PAUSE_S: Final = 0.1


class ServerLog:
    """The last lines that a server wrote to its standard error, and what its connection says of
    it. Used on any thread."""

    def __init__(self, scrub: Callable[[str], str]) -> None:
        self._scrub, self._lock = scrub, Lock()
        self._lines: deque[str] = deque(maxlen=LOG_LINES_MAX)

    @property
    def lines(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(self._lines)

    def add(self, text: str) -> None:
        line = self._scrub(text)[:LINE_MAX]
        with self._lock:
            self._lines.append(line)

    async def copy(self, stream: asyncio.StreamReader) -> None:
        """Read a standard error to its end; it never fills, and a flood of it costs little."""
        rest = b""
        while chunk := await stream.read(_CHUNK):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines[-CHUNK_LINES_MAX:]:
                self.add(line.decode(errors="replace").rstrip("\r"))
            rest = rest[-LINE_MAX:]
            if len(lines) > CHUNK_LINES_MAX:
                await asyncio.sleep(FLOOD_PAUSE_S)
        if rest:
            self.add(rest.decode(errors="replace"))


# --- start and end --------------------------------------------------------------------------------


class ServerLaunch(NamedTuple):
    """How to start a server."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    """Beside what every server gets of the node's."""
    folder: str = ""
    memory_bytes: int = 0
    cpu_seconds: int = 0

    def checked_environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """All variables of the process; refuses a program or a folder that does not exist."""
        clean = {name: environ[name] for name in _INHERITED if name in environ}
        clean |= self.environment
        program = self.command[0]
        if shutil.which(program, path=clean.get("PATH", os.defpath)) is None:
            raise Refused(
                "SURFACE_UNAVAILABLE",
                f"there is no program {program[:200]!r} on this node",
                hint="install it, or write its path",
            )
        if self.folder and not Path(self.folder).is_dir():
            raise Refused(
                "SURFACE_UNAVAILABLE", f"there is no folder {self.folder[:200]!r} on this node"
            )
        return clean


class _ServerProcess:
    """A running server, its guard and the ends of its streams."""

    def __init__(self, launch: ServerLaunch, environ: Mapping[str, str]) -> None:
        environment = launch.checked_environment(environ)
        self._own_folder = "" if launch.folder else tempfile.mkdtemp(prefix="rookery-mcp-")
        control, self._control = os.pipe()
        try:
            self.guard = subprocess.Popen(
                [
                    sys.executable,
                    *("-I", "-S", str(_GUARD), str(control)),
                    *(str(launch.memory_bytes), str(launch.cpu_seconds)),
                    launch.folder or self._own_folder,
                    *launch.command,
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                pass_fds=(control,),
                start_new_session=True,
                bufsize=0,
            )
        except BaseException:
            os.close(self._control)
            self._remove_folder()
            raise
        finally:
            os.close(control)
        self._transports: list[asyncio.BaseTransport] = []

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Its standard output, and its standard input."""
        loop = asyncio.get_running_loop()
        reader = await self._read(self.guard.stdout)
        writing, protocol = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader(), loop=loop),
            self.guard.stdin,
        )
        self._transports.append(writing)
        return reader, asyncio.StreamWriter(writing, protocol, None, loop)

    async def errors(self) -> asyncio.StreamReader:
        """Its standard error."""
        return await self._read(self.guard.stderr)

    async def _read(self, pipe: object) -> asyncio.StreamReader:
        reader = asyncio.StreamReader(limit=_CHUNK)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader, loop=loop), pipe
        )
        self._transports.append(transport)
        return reader

    async def stop(self, patience_s: float) -> int:
        """End the server with all it has started; its exit code. ``patience_s``: for it to end by
        itself, because its input has."""
        if not await self._has_ended(patience_s):
            os.close(self._control)
            self._control = -1
            if not await self._has_ended(2 * CLOSE_S + 1):
                self.guard.kill()
                await self._has_ended(CLOSE_S)
        if self._control >= 0:
            os.close(self._control)
        for transport in self._transports:
            transport.close()
        self._remove_folder()
        return self.guard.returncode or 0

    async def _has_ended(self, timeout_s: float) -> bool:
        end_s = anyio.current_time() + timeout_s
        while self.guard.poll() is None:
            if anyio.current_time() >= end_s:
                return False
            await anyio.sleep(0.01)
        return True

    def _remove_folder(self) -> None:
        if self._own_folder:
            shutil.rmtree(self._own_folder, ignore_errors=True)


# --- transport ------------------------------------------------------------------------------------


@asynccontextmanager
async def _opened(
    launch: ServerLaunch, environ: Mapping[str, str], log: ServerLog
) -> AsyncIterator[tuple[MessageStream, _MessageWriter]]:
    process = _ServerProcess(launch, environ)
    try:
        stdout, stdin = await process.connect()
        errors = await process.errors()
        reader = _MessageReader(stdout, log)
        stream = reader.stream = MessageStream(reader)
        writer = _MessageWriter(stdin, stream)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(log.copy, errors)
            try:
                yield stream, writer
            finally:
                with anyio.CancelScope(shield=True):
                    reader.is_closed = writer.is_closed = True
                    stdin.close()
                    code = await process.stop(CLOSE_S if stream.fault is None else 0.0)
                    log.add(f"rookery: the server ended with {code}")
                    tasks.cancel_scope.cancel()
    finally:
        if process.guard.poll() is None:  # Cancelled before the streams were connected.
            process.guard.kill()
            await asyncio.to_thread(process.guard.wait)


def stdio_transport(launch: ServerLaunch, environ: Mapping[str, str], log: ServerLog) -> Transport:
    """Start the server for a block; at its end nothing that the server has started is left."""
    return _opened(launch, environ, log)


class _Closable:
    """A stream in the form that the SDK has it."""

    is_closed = False

    async def aclose(self) -> None:
        self.is_closed = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.is_closed = True


class _MessageReader(_Closable):
    """The messages of a standard output. The SDK's task reads them itself: a call waits for no task
    between it and the server."""

    stream: MessageStream
    """Learns the end before the calls do, so that none begins on the connection any more."""

    def __init__(self, stdout: asyncio.StreamReader, log: ServerLog) -> None:
        self._stdout, self._log = stdout, log
        self._lines: deque[bytes] = deque()
        self._parts: list[bytes] = []
        """Of a line that has no end yet."""
        self._size = self._garbage = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def receive(self) -> SessionMessage:
        """The next message, until the server ends, or breaks the rules of the protocol."""
        if self.is_closed:
            raise anyio.ClosedResourceError
        try:
            while True:
                while not self._lines:
                    await self._read_lines()
                message = _parsed(line := self._lines.popleft())
                if message is None:
                    await self._pass_over(line)
                    continue
                self._garbage = 0
                if self._lines:
                    await asyncio.sleep(0)  # A server that sends many delays no other.
                return message
        except ServerFault as fault:
            self.stream.fail(fault)
            raise anyio.EndOfStream from None

    async def _read_lines(self) -> None:
        chunk = await self._stdout.read(_CHUNK)
        if not chunk:
            raise ServerEnded("ended")
        *lines, rest = chunk.split(b"\n")
        if lines:
            lines[0] = b"".join((*self._parts, lines[0]))
            self._parts, self._size = [], 0
            self._lines.extend(lines)
        self._parts.append(rest)
        self._size += len(rest)
        if self._size > MESSAGE_BYTES_MAX:
            raise ServerFault(f"sent a message of more than {MESSAGE_BYTES_MAX} bytes")

    async def _pass_over(self, line: bytes) -> None:
        self._garbage += 1
        if self._garbage > GARBAGE_MAX:
            raise ServerFault("writes what is no message of the protocol")
        self._log.add(f"rookery: no message: {line[:200].decode(errors='replace')}")
        await self.stream.throttle()


def _parsed(line: bytes) -> SessionMessage | None:
    try:
        return SessionMessage(types.jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError:
        return None


class _MessageWriter(_Closable):
    """The messages to a standard input."""

    def __init__(self, stdin: asyncio.StreamWriter, stream: MessageStream) -> None:
        self._stdin, self._stream = stdin, stream

    async def send(self, item: SessionMessage, /) -> None:
        if self.is_closed:
            raise anyio.ClosedResourceError
        text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
        try:
            self._stdin.write(text.encode() + b"\n")
            await self._stdin.drain()
        except OSError:
            self._stream.fail(ServerFault("closed its standard input"))
            raise anyio.BrokenResourceError from None
