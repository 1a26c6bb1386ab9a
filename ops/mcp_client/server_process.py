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
from typing import Final, NamedTuple

import anyio
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
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

Item = SessionMessage | Exception


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
) -> AsyncIterator[tuple[MessageStream, MemoryObjectSendStream[SessionMessage]]]:
    process = _ServerProcess(launch, environ)
    into_session, received = anyio.create_memory_object_stream[Item](0)
    outgoing, from_session = anyio.create_memory_object_stream[SessionMessage](0)
    stream = MessageStream(received)
    try:
        stdout, stdin = await process.connect()
        errors = await process.errors()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(log.copy, errors)
            tasks.start_soon(_read_messages, stdout, into_session, stream, log)
            tasks.start_soon(_write_messages, stdin, from_session, stream)
            try:
                yield stream, outgoing
            finally:
                with anyio.CancelScope(shield=True):
                    received.close()
                    outgoing.close()
                    stdin.close()
                    code = await process.stop(CLOSE_S if stream.fault is None else 0.0)
                    log.add(f"rookery: the server ended with {code}")
                    tasks.cancel_scope.cancel()
    finally:
        if process.guard.poll() is None:  # Cancelled before the streams were connected.
            process.guard.kill()
            await asyncio.to_thread(process.guard.wait)
        for one in (into_session, received, outgoing, from_session):
            one.close()


def stdio_transport(launch: ServerLaunch, environ: Mapping[str, str], log: ServerLog) -> Transport:
    """Start the server for a block; at its end nothing that the server has started is left."""
    return _opened(launch, environ, log)


async def _read_messages(
    stdout: asyncio.StreamReader,
    into_session: MemoryObjectSendStream[Item],
    stream: MessageStream,
    log: ServerLog,
) -> None:
    """Read messages until the server ends, or breaks the rules of the protocol. The connection
    learns that before the calls do, so that none begins on it any more."""
    async with into_session:
        try:
            await _deliver(stdout, into_session, stream, log)
            stream.fail(ServerEnded("ended"))
        except ServerFault as fault:
            stream.fail(fault)
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            """The session is closed, and nothing that still comes is read."""


async def _deliver(
    stdout: asyncio.StreamReader,
    into_session: MemoryObjectSendStream[Item],
    stream: MessageStream,
    log: ServerLog,
) -> None:
    garbage, parts, size = 0, list[bytes](), 0
    while chunk := await stdout.read(_CHUNK):
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            message = _parsed(b"".join((*parts, line)))
            parts, size = [], 0
            if message is not None:
                garbage = 0
                await into_session.send(message)
                continue
            if (garbage := garbage + 1) > GARBAGE_MAX:
                raise ServerFault("writes what is no message of the protocol")
            log.add(f"rookery: no message: {line[:200].decode(errors='replace')}")
            await stream.throttle()
        parts.append(rest)
        size += len(rest)
        if size > MESSAGE_BYTES_MAX:
            raise ServerFault(f"sent a message of more than {MESSAGE_BYTES_MAX} bytes")


def _parsed(line: bytes) -> SessionMessage | None:
    try:
        return SessionMessage(types.jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError:
        return None


async def _write_messages(
    stdin: asyncio.StreamWriter,
    from_session: MemoryObjectReceiveStream[SessionMessage],
    stream: MessageStream,
) -> None:
    try:
        async with from_session:
            async for item in from_session:
                text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                stdin.write(text.encode() + b"\n")
                await stdin.drain()
    except OSError:
        stream.fail(ServerFault("closed its standard input"))
