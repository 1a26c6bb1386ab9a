"""The client's methods for resources, each for a session: what one session may read, another may
not."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import msgspec
from msgspec import UNSET

from rookery.schemas.ids import decode_typed_text
from rookery.schemas.resources import (
    CAPTURE_BYTES,
    READ_BYTES_MAX,
    ReadResource,
    ResolveResource,
    ResourceGrant,
    ResourceList,
    ResourcePiece,
    ResourcesQuery,
)

__all__ = ["ResourcesMixin"]


class ResourcesMixin(ABC):
    """The part of ``Client`` for resources."""

    @abstractmethod
    async def ask(self, verb: str, key: str, body: object = None) -> dict[str, Any]:
        """Send a request and return its durable reply."""

    async def resources(self) -> ResourceList:
        """List the schemes that the node which answers resolves."""
        return msgspec.convert(await self.ask("resources", "all", ResourcesQuery()), ResourceList)

    async def resolve_resource(
        self, session: str, uri: str, *, max_bytes: int = CAPTURE_BYTES
    ) -> ResourceGrant:
        """Capture at most ``max_bytes`` of a resource: a ref, and the right to read it."""
        body = ResolveResource(uri=uri, max_bytes=max_bytes)
        reply = await self.ask("resource_resolve", session, body)
        return msgspec.convert(reply, ResourceGrant, dec_hook=decode_typed_text)

    async def read_resource(
        self,
        session: str,
        uri: str | ResourceGrant,
        *,
        max_bytes: int = CAPTURE_BYTES,
        offset: int = 0,
    ) -> ResourcePiece:
        """Bytes of a URI, of what ``resolve_resource`` answered, or of a ref that the session's
        facts name. More than one message holds comes in several."""
        source = uri
        if isinstance(source, str) and "://" in source and max_bytes > READ_BYTES_MAX:
            source = await self.resolve_resource(session, source, max_bytes=offset + max_bytes)
        piece = await self._piece(session, source, max_bytes, offset)
        parts = [piece.data]
        while piece.next_offset is not None and (left := max_bytes - sum(map(len, parts))):
            piece = await self._piece(session, source, left, piece.next_offset)
            parts.append(piece.data)
        return msgspec.structs.replace(piece, offset=offset, data=b"".join(parts))

    async def _piece(
        self, session: str, source: str | ResourceGrant, max_bytes: int, offset: int
    ) -> ResourcePiece:
        if isinstance(source, ResourceGrant):
            uri, grant = source.resolution.content_ref.as_str(), source.grant
        else:
            uri, grant = source, UNSET
        count = min(max_bytes, READ_BYTES_MAX)
        body = ReadResource(uri=uri, max_bytes=count, offset=offset, grant=grant)
        reply = await self.ask("resource_read", session, body)
        return msgspec.convert(reply, ResourcePiece, dec_hook=decode_typed_text)
