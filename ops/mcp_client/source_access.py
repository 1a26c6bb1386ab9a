"""How a node reaches one server: its process or its address, with the values and the credential
that the source names. Used on the loop of the connections."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from mcp.client import Transport

from rookery.actors.credentials import CredentialSource, read_credential, report_rejected
from rookery.actors.protection.scrubber import Scrubber
from rookery.actors.tools import ToolCredential
from rookery.bus.ports import ValueSeal
from rookery.ops.mcp_client.http_transport import HttpTarget, http_transport
from rookery.ops.mcp_client.server_process import ServerLaunch, ServerLog, stdio_transport
from rookery.ops.mcp_client.source_values import SourceValues, expand
from rookery.schemas.surfaces import SurfaceKind, SurfaceSource

__all__ = ["NodeServices", "SourceAccess"]

WORDS_MAX: Final = 200

T = TypeVar("T")


class NodeServices(NamedTuple):
    """What connections need of their node."""

    seal: ValueSeal
    credentials: CredentialSource
    environ: Mapping[str, str]
    loop: asyncio.AbstractEventLoop
    """The bus's, where the credentials live."""

    async def on_bus(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` there and wait for it."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop))


class SourceAccess:
    """The access to the server of one source."""

    def __init__(self, surface: str, source: SurfaceSource, node: NodeServices) -> None:
        self._surface, self._source, self._node = surface, source, node
        self._values = SourceValues(surface, node.seal, node.environ)
        self._given: ToolCredential | None = None
        """The last one that the server got outside calls."""
        self._reported: ToolCredential | None = None
        self.log = ServerLog(self.scrub)
        self._target: HttpTarget | None = None

    @property
    def scrubbers(self) -> tuple[Scrubber, ...]:
        """Of the secrets in the environment or the headers."""
        return self._values.scrubbers

    def scrub(self, text: str) -> str:
        given = () if self._given is None else (self._given.scrubber,)
        for scrubber in (*given, *self._values.scrubbers):
            text = scrubber.scrub_text(text)
        return text

    @property
    def _is_process(self) -> bool:
        return self._source.kind is SurfaceKind.MCP_STDIO

    def generation_of(self, credential: ToolCredential | None) -> int:
        """The generation that the server must have been started with; a request by HTTP has its
        own credential."""
        return credential.generation if self._is_process and credential is not None else 0

    async def read_credential(self) -> ToolCredential | None:
        """The credential to start the server with."""
        return await self._read() if self._is_process and self._source.binding else None

    async def _read(self) -> ToolCredential:
        self._given = await self._node.on_bus(
            read_credential(self._node.credentials, self._source.binding)
        )
        return self._given

    async def report_rejected(self) -> None:
        """Report the credential that the server refused outside calls, so that it is renewed."""
        given = self._given
        if given is not None and given.is_rejected and given is not self._reported:
            self._reported = given
            work = report_rejected(self._node.credentials, self._source.binding, given)
            await self._node.on_bus(work)

    def transport(self, credential: ToolCredential | None) -> Transport:
        """A new connection, not open yet."""
        source, environ = self._source, self._node.environ
        if not self._is_process:
            self._target = HttpTarget(
                expand(source.url, environ, f"the URL of {self._surface}"),
                self._values.read("headers", source.headers),
                read_credential=self._read if source.binding else None,
                credential_header=source.binding_target or "Authorization",
            )
            return http_transport(self._target)
        values = self._values.read("environment", source.environment)
        if credential is not None:
            values |= credential.environment(source.binding_target)
        where = f"the command of {self._surface}"
        launch = ServerLaunch(
            command=tuple(expand(word, environ, where) for word in source.command),
            environment=values,
            folder=expand(source.folder, environ, where),
            memory_bytes=source.memory_bytes or 0,
            cpu_seconds=source.cpu_seconds or 0,
        )
        return stdio_transport(launch, environ, self.log)

    def last_words(self) -> str:
        """What the server said last, for an error."""
        if self._target is not None:
            return f": {self._target.last_error}" if self._target.last_error else ""
        own = [line for line in self.log.lines if line and not line.startswith("rookery: ")]
        return f": {own[-1][:WORDS_MAX]}" if own else ""
