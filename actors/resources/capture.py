"""Captures: the bounded bytes of a resource, stored as a blob, and the resolution that names them.

The name of a blob is the digest of its bytes, so what a ref means never changes.
"""

from __future__ import annotations

import asyncio
from mimetypes import MimeTypes
from typing import Final, NamedTuple

import msgspec

from rookery.bus.ports import Blobs, ValueSeal
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.ids import ContentRef as ContentRefId
from rookery.schemas.protection.sealed_values import SealedValue
from rookery.schemas.resources import ResolvedResource
from rookery.schemas.seed.content import ContentKind, ContentRef, ContentScope
from rookery.schemas.seed.refs import PrivacyClass, RetentionClass, SourceRef, TrustClass
from rookery.schemas.seed.resource import ResourceReadRequest, ResourceScheme

__all__ = [
    "BINARY",
    "CaptureStore",
    "CapturedBytes",
    "describe",
    "highest_privacy",
    "mime_of",
    "read_privacy",
]

BINARY: Final = "application/octet-stream"
_BY_NAME: Final = MimeTypes(filenames=())
"""Without the system's table, so that every node says the same."""
_KINDS: Final = {
    "text": ContentKind.TEXT,
    "image": ContentKind.IMAGE,
    "audio": ContentKind.AUDIO,
    "video": ContentKind.VIDEO,
}
_SEALED: Final = b"rookery-sealed-content\0"
"""Begins the blob of content that is sealed."""
_PLACE: Final = ("resource", "content")
"""What the seal is for."""
_RANKS: Final = {privacy: rank for rank, privacy in enumerate(PrivacyClass)}


class CapturedBytes(NamedTuple):
    """What a resolver found."""

    data: bytes
    scope: ContentScope
    trust: TrustClass
    truncated: bool = False
    mime: str = BINARY
    name: str = ""
    """Where the bytes came from in the end."""
    privacy: PrivacyClass = PrivacyClass.CONTENT_REFS_ONLY
    etag: str = ""


class CaptureStore:
    """Checks the budgets of requests, and stores what their resolvers found. A client that knows a
    digest may read its blob, so bytes that not every client may see are sealed there."""

    def __init__(self, blobs: Blobs, bytes_max: int, seal: ValueSeal) -> None:
        self._blobs, self._bytes_max, self._seal = blobs, bytes_max, seal

    async def put(self, data: bytes, privacy: PrivacyClass) -> str:
        """Store bytes of this class; the digest of their blob."""
        if privacy in PrivacyClass.CONTENT_REFS_ONLY.and_below:
            return await self._blobs.put(data)
        sealed = await asyncio.to_thread(self._seal.seal, data, *_PLACE)
        return await self._blobs.put(_SEALED + msgspec.json.encode(sealed))

    async def get(self, digest: str, privacy: PrivacyClass) -> bytes:
        """The bytes of a blob of this class. Older versions sealed none."""
        data = await self._blobs.get(digest)  # It checks the digest of the bytes.
        if privacy in PrivacyClass.CONTENT_REFS_ONLY.and_below or not data.startswith(_SEALED):
            return data
        try:
            sealed = msgspec.json.decode(data[len(_SEALED) :], type=SealedValue)
        except msgspec.MsgspecError:
            raise Failed("SEALED_VALUE_CORRUPT", f"blob {digest} is no sealed content") from None
        return await asyncio.to_thread(self._seal.open, sealed, *_PLACE)

    def budget(self, request: ResourceReadRequest) -> int:
        """How many bytes the request may capture."""
        if request.max_bytes > self._bytes_max:
            raise Refused(
                "RESOURCE_TOO_LARGE",
                f"{request.max_bytes} bytes are above the node's limit of {self._bytes_max}",
                hint="ask for less, or raise resources.max_bytes",
            )
        return request.max_bytes

    async def store(
        self, request: ResourceReadRequest, scheme: ResourceScheme, found: CapturedBytes
    ) -> ResolvedResource:
        """Cut to the budget, put into the blob store, and describe."""
        budget = self.budget(request)
        data, truncated = found.data[:budget], found.truncated or len(found.data) > budget
        privacy = highest_privacy(found.privacy, PrivacyClass.CONTENT_REFS_ONLY)
        digest = await self.put(data, privacy)
        content = describe(found._replace(privacy=privacy), digest, len(data))
        return ResolvedResource(
            uri=request.uri,
            scheme=scheme,
            content_ref=ContentRefId(f"blob:{digest}"),
            source=SourceRef.new(f"resource.{scheme}"),
            policy_refs=request.policy_refs,
            byte_len=len(data),
            truncated=truncated,
            parser_version=f"{scheme}.resource.resolver.v1",
            privacy=privacy,
            retention=RetentionClass.DURABLE,
            redacted_summary=f"{scheme} resource captured as {len(data)} bytes",
            content=content,
            etag=found.etag,
        )


def describe(found: CapturedBytes, digest: str, size_bytes: int) -> ContentRef:
    """The content that is stored under a digest."""
    return ContentRef(
        content_id=f"blob.{digest}",
        kind=_KINDS.get(found.mime.partition("/")[0], ContentKind.FILE),
        artifact_ref=found.name,
        scope=found.scope,
        mime=found.mime,
        size_bytes=size_bytes,
        content_hash=digest,
        privacy_class=found.privacy,
        trust_class=found.trust,
        resolver_ref="blob",
    )


def highest_privacy(*classes: PrivacyClass) -> PrivacyClass:
    """The class that the fewest may read."""
    return max(classes, key=_RANKS.__getitem__)


def read_privacy(word: str | None) -> PrivacyClass:
    """A class as facts have it; one that this version does not know is the strictest."""
    try:
        return PrivacyClass(word or "")
    except ValueError:
        return PrivacyClass.SECRET


def mime_of(name: str) -> str:
    """By the end of the name; a claim, as every mime type is."""
    return _BY_NAME.guess_type(name)[0] or BINARY
