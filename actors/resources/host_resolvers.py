"""Resolvers of what the node's configuration offers, to all sessions alike: ``file``, ``http``,
``https``, ``memory``, and the functions of the application.

They have the limits of the tools for files and HTTP, and the same code behind them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final
from urllib.parse import unquote_to_bytes

import msgspec

from rookery.actors.daemon_threads import DaemonThreadPool, run_on_own_thread
from rookery.actors.resources.capture import BINARY, CapturedBytes, CaptureStore, describe, mime_of
from rookery.actors.resources.router import ResourceResolver, StaticResourceResolver
from rookery.actors.resources.session_resolvers import uri_rest
from rookery.actors.tools import ToolError
from rookery.actors.tools.authoring import RegisteredResource, ResourceContent
from rookery.actors.tools.files import Mount, Mounts
from rookery.actors.tools.web import Allowed, HttpReader
from rookery.schemas.errors import CODES, Failed, Refused
from rookery.schemas.ids import ContentRef as ContentRefId
from rookery.schemas.resources import ResolvedResource
from rookery.schemas.seed.content import ContentRef, ContentScope
from rookery.schemas.seed.refs import PolicyKind, PolicyRef, PrivacyClass, SourceRef, TrustClass
from rookery.schemas.seed.resource import ResourceReadRequest, ResourceResolution, ResourceScheme

__all__ = [
    "FileResolver",
    "FunctionResolver",
    "HttpResolver",
    "MemoryResolver",
    "StaticContent",
    "coded_error",
    "create_resolvers",
]

log = logging.getLogger(__name__)

TIMEOUT_MS: Final = 10_000
_GONE: Final = (404, 410)
_CODES: Final = {
    "FILE_NOT_FOUND": "RESOURCE_NOT_FOUND",
    "INVALID_ARGUMENT": "RESOURCE_URI_INVALID",
    "PAYLOAD_TOO_LARGE": "RESOURCE_TOO_LARGE",
}
"""Codes of the tools for files and HTTP, as resources have them."""


def coded_error(error: ToolError) -> Refused | Failed:
    """A tool's error at the request endpoint; a code of its own is part of the text there."""
    code = _CODES.get(error.code, error.code)
    if code == "TOOL_ERROR" or code.startswith("TIMEOUT"):
        return Failed(code, error.message)
    if code not in CODES:
        return Failed("TOOL_ERROR", f"{error.code[:80]}: {error.message}")
    return Refused(code, error.message)


def create_resolvers(
    mounts: Mapping[str, Mount],
    servers: Sequence[Allowed],
    static: Mapping[str, StaticContent],
    functions: Mapping[str, RegisteredResource],
    *,
    threads: DaemonThreadPool,
    store: CaptureStore,
) -> list[ResourceResolver]:
    """Those that serve every session alike; a scheme without anything behind it has none."""
    found: list[ResourceResolver] = []
    if mounts:
        found.append(FileResolver(Mounts(mounts), store))
    if servers:
        reader = HttpReader(servers)
        found += [HttpResolver(scheme, reader, store) for scheme in ("http", "https")]
    if static:
        found.append(MemoryResolver(static))
    for resource in functions.values():
        found.append(FunctionResolver(resource, threads, store))
    return found


class FileResolver:
    """``file://<mount>/<path>``: files of the mounted folders, whatever their mode, read-only."""

    scheme = ResourceScheme("file")
    form = "file://<mount>/<path>"

    def __init__(self, mounts: Mounts, store: CaptureStore) -> None:
        self._mounts, self._store = mounts, store
        self.names = mounts.names

    async def resolve(self, request: ResourceReadRequest) -> ResolvedResource:
        budget = self._store.budget(request)
        path = _path_of(request)
        try:
            place = self._mounts.resolve(path)
            data = await run_on_own_thread(partial(place.read_prefix, budget + 1))
        except ToolError as error:
            raise coded_error(error) from None
        found = CapturedBytes(
            data,
            ContentScope.HOST_WORKSPACE,
            TrustClass.HOST_PROVIDED,
            mime=mime_of(place.path),
            name=place.path,
        )
        return await self._store.store(request, self.scheme, found)


def _path_of(request: ResourceReadRequest) -> str:
    """The virtual path, decoded once; ``Mounts`` refuses one that leads upwards."""
    rest = uri_rest(request)
    if rest.startswith("/") or "\\" in rest:
        text = f"{request.uri[:80]!r} names no mount: {FileResolver.form}"
        raise Refused("RESOURCE_URI_INVALID", text)
    try:
        return f"/{unquote_to_bytes(rest).decode()}"
    except UnicodeDecodeError:
        raise Refused("RESOURCE_URI_INVALID", f"{request.uri[:80]!r} is not UTF-8") from None


class HttpResolver:
    """``http://`` and ``https://``: GET from the servers of the allowlist, without a credential."""

    def __init__(self, scheme: str, reader: HttpReader, store: CaptureStore) -> None:
        self.scheme = ResourceScheme(scheme)
        self.form = f"{scheme}://<server>/<path>"
        self._reader, self._store = reader, store
        self.names = tuple(url for url in reader.servers if url.startswith(f"{scheme}:"))

    async def resolve(self, request: ResourceReadRequest) -> ResolvedResource:
        budget = self._store.budget(request)
        try:
            target, response = await self._reader.get(request.uri, budget, TIMEOUT_MS)
        except ToolError as error:
            raise coded_error(error) from None
        if not 200 <= response.status < 300:
            text = f"{target.url[:200]} answered with {response.status}"
            if response.status in _GONE:
                raise Refused("RESOURCE_NOT_FOUND", text)
            raise Failed("TOOL_ERROR", text)
        mime = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        found = CapturedBytes(
            response.body,
            ContentScope.EXTERNAL,
            TrustClass.EXTERNAL,
            truncated=response.truncated,
            mime=mime[:200] or BINARY,
            name=target.url,
            etag=response.headers.get("etag", "")[:200],
        )
        return await self._store.store(request, self.scheme, found)


class StaticContent(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that the operator registered under a name: they are in the blob store."""

    digest: str
    size_bytes: int
    mime: str = BINARY
    privacy: PrivacyClass = PrivacyClass.CONTENT_REFS_ONLY

    @classmethod
    def of(
        cls, file: str, digest: str, size_bytes: int, *, mime: str, privacy: PrivacyClass
    ) -> StaticContent:
        """Of a file; without ``mime`` its name says the type."""
        return cls(
            digest=digest, size_bytes=size_bytes, mime=mime or mime_of(file), privacy=privacy
        )


class MemoryResolver:
    """``memory://<name>``: refs as the operator registered them, one static resolver a name."""

    scheme = ResourceScheme("memory")
    form = "memory://<name>"

    def __init__(self, contents: Mapping[str, StaticContent]) -> None:
        self.names = tuple(sorted(contents))
        self._contents = contents

    async def resolve(self, request: ResourceReadRequest) -> ResourceResolution:
        name = uri_rest(request)
        content = self._contents.get(name)
        if content is None:
            raise Refused(
                "RESOURCE_NOT_FOUND",
                f"no static resource is called {name[:80]!r}",
                hint="rookery resources list",
            )
        registered = StaticResourceResolver(
            self.scheme,
            ContentRefId(f"blob:{content.digest}"),
            SourceRef.new(f"resource.memory.{name}"),
            PolicyRef.new("resources.static", PolicyKind.PERMISSION),
        )
        resolution = await registered.resolve(request)
        return ResolvedResource(
            **{name: getattr(resolution, name) for name in resolution.__struct_fields__}
            | {"privacy": content.privacy},
            content=_content_ref(name, content),
        )


def _content_ref(name: str, content: StaticContent) -> ContentRef:
    stored = CapturedBytes(
        b"",
        ContentScope.PERSISTENT_STORE,
        TrustClass.HOST_PROVIDED,
        mime=content.mime,
        name=name,
        privacy=content.privacy,
    )
    return describe(stored, content.digest, content.size_bytes)


class FunctionResolver:
    """The URIs of an ``@resource`` function of the application, on a pool of threads."""

    def __init__(
        self, registered: RegisteredResource, pool: DaemonThreadPool, store: CaptureStore
    ) -> None:
        self.scheme = registered.scheme
        summary = registered.description.partition("\n")[0]
        self.form = f"{registered.scheme}://...: {summary or registered.function.__name__}"
        self._function, self._pool, self._store = registered.function, pool, store

    async def resolve(self, request: ResourceReadRequest) -> ResolvedResource:
        self._store.budget(request)
        running = asyncio.get_running_loop().run_in_executor(self._pool, self._function, request)
        try:
            async with asyncio.timeout(TIMEOUT_MS / 1_000):
                found = _content_of(await running)
        except TimeoutError:
            text = f"{self.scheme}:// took longer than {TIMEOUT_MS} ms"
            raise Failed("TIMEOUT_TOOL", text) from None
        except ToolError as error:
            raise coded_error(error) from None
        except Exception as error:
            log.exception("the resource function of %s:// failed", self.scheme)
            text = f"{self.scheme}:// failed: {type(error).__name__}; the node's log has more"
            raise Failed("TOOL_ERROR", text) from None
        return await self._store.store(request, self.scheme, found)


def _content_of(found: object) -> CapturedBytes:
    if isinstance(found, bytes | str):
        found = ResourceContent(data=found)
    if not isinstance(found, ResourceContent):
        raise ToolError("TOOL_ERROR", f"the function returned {type(found).__name__}, no bytes")
    is_text = isinstance(found.data, str)
    return CapturedBytes(
        found.data.encode() if isinstance(found.data, str) else found.data,
        ContentScope.EXTERNAL,
        TrustClass.HOST_PROVIDED,
        mime=found.mime or ("text/plain" if is_text else BINARY),
        privacy=found.privacy,
        etag=found.etag,
    )
