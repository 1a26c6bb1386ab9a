"""The tools ``resource_resolve`` and ``resource_read``: resources of the node, for programs.

A call of them is a call as any: recorded before it is made, covered by rights, approvable. The fact
of its outcome has the resolution, and the bytes that were read. ``rookery.actors.resources`` has
the resolvers, behind a port.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final, Protocol, TypedDict, TypeVar

import msgspec
from msgspec import Meta

from rookery.actors.tools.authoring.decorator import tool
from rookery.actors.tools.authoring.registry import ToolCallContext, ToolError, ToolRegistry
from rookery.schemas.calls import CapabilityLimits
from rookery.schemas.errors import CodedError
from rookery.schemas.ids import encode_typed_text
from rookery.schemas.resources import (
    CAPTURE_BYTES,
    READ_BYTES_MAX,
    URI_LENGTH_MAX,
    ResolvedResource,
    ResourcePiece,
)
from rookery.schemas.run import SideEffect

__all__ = ["ResourcePort", "resource_tools"]

T = TypeVar("T")

_LIMITS: Final = CapabilityLimits(timeout_ms=20_000, max_response_bytes=8 << 20)
"""A piece of text may take six times its bytes in JSON."""
_CHARACTER_BYTES_MAX: Final = 4

_Uri = Annotated[str, Meta(min_length=1, max_length=URI_LENGTH_MAX, description="scheme://...")]
_UriOrRef = Annotated[
    str, Meta(min_length=1, max_length=URI_LENGTH_MAX, description="scheme://..., or a ref")
]
_MaxBytes = Annotated[int, Meta(ge=1, description="where a longer resource is cut")]
_PieceBytes = Annotated[int, Meta(ge=1, le=READ_BYTES_MAX)]
_Offset = Annotated[int, Meta(ge=0, description="of the first byte")]


class ResourcePort(Protocol):
    """Resolves and reads for a session. Used on the bus's loop."""

    async def resolve(self, session: str, uri: str, max_bytes: int) -> ResolvedResource: ...

    async def read(self, session: str, uri: str, max_bytes: int, offset: int) -> ResourcePiece: ...


class Resolved(TypedDict):
    ref: str
    """For ``resource_read``."""
    resolution: dict[str, Any]


class Piece(TypedDict):
    """The bytes are ``text`` if they are UTF-8, else ``base64``; the other is null."""

    ref: str
    mime: str
    offset: int
    bytes: int
    """In this piece."""
    size_bytes: int
    """Of all that was captured."""
    next_offset: int | None
    """Where the next piece begins, if there is one."""
    truncated: bool
    """Whether bytes of the source are missing after this piece."""
    text: str | None
    base64: str | None
    resolution: dict[str, Any] | None
    """If a URI was read."""


def resource_tools(port: ResourcePort) -> ToolRegistry:
    """The tools, as functions for the bus's loop."""
    return ToolRegistry.of(_resource_resolve(port), _resource_read(port))


def _resource_resolve(port: ResourcePort) -> Callable[..., Any]:
    async def resource_resolve(
        uri: _Uri, ctx: ToolCallContext, max_bytes: _MaxBytes = CAPTURE_BYTES
    ) -> Resolved:
        """Capture a resource, and get a ref to its bytes."""
        found = await _coded(port.resolve(ctx.session_id, uri, max_bytes))
        return {"ref": found.content_ref.as_str(), "resolution": _plain(found)}

    return _declared(resource_resolve)


def _resource_read(port: ResourcePort) -> Callable[..., Any]:
    async def resource_read(
        uri: _UriOrRef,
        ctx: ToolCallContext,
        max_bytes: _PieceBytes = CAPTURE_BYTES,
        offset: _Offset = 0,
    ) -> Piece:
        """Bytes of a ref, or of a resource that is captured by the same call."""
        return _piece(await _coded(port.read(ctx.session_id, uri, max_bytes, offset)))

    return _declared(resource_read)


def _declared(function: Callable[..., Any]) -> Callable[..., Any]:
    return tool(side_effect=SideEffect.READ, limits=_LIMITS, quick=True)(function)


async def _coded(work: Awaitable[T]) -> T:
    """The program sees the error's code."""
    try:
        return await work
    except CodedError as error:
        text = f"{error.message} ({error.hint})" if error.hint else error.message
        raise ToolError(error.code, text) from None


def _piece(found: ResourcePiece) -> Piece:
    data, next_offset = found.data, found.next_offset
    text = _text_of(data, is_cut=found.truncated)
    if text is not None:
        data = text.encode()
        if next_offset is not None:
            next_offset = found.offset + len(data)
    return {
        "ref": found.ref,
        "mime": found.mime,
        "offset": found.offset,
        "bytes": len(data),
        "size_bytes": found.size_bytes,
        "next_offset": next_offset,
        "truncated": found.truncated,
        "text": text,
        "base64": b64encode(data).decode() if text is None else None,
        "resolution": _plain(found.resolution) if found.resolution else None,
    }


def _text_of(data: bytes, *, is_cut: bool) -> str | None:
    """The text; of a piece that ends within a character, without that character."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        within_last = len(data) - error.start < _CHARACTER_BYTES_MAX
        if is_cut and within_last and error.start and error.reason == "unexpected end of data":
            return data[: error.start].decode()
        return None


def _plain(resolution: object) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(resolution, enc_hook=encode_typed_text)
    return found
