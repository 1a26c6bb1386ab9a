"""Resources on the wire: what programs and clients resolve to a ref, and read.

``resolve`` captures bounded bytes in the blob store and answers a ref; ``read`` is a second step
with checks of its own. A ref alone gives no right to read.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import UNSET, Meta, UnsetType

from rookery.schemas.errors import Refused
from rookery.schemas.protection.sealed_values import SealedValue
from rookery.schemas.seed.content import ContentRef
from rookery.schemas.seed.resource import ResourceResolution

__all__ = [
    "CAPTURE_BYTES",
    "READ_BYTES_MAX",
    "URI_LENGTH_MAX",
    "ListedScheme",
    "ReadResource",
    "ResolveResource",
    "ResolvedResource",
    "ResourceGrant",
    "ResourceList",
    "ResourcePiece",
    "ResourceRef",
    "ResourcesQuery",
    "parse_ref",
]

CAPTURE_BYTES: Final = 64 << 10
"""What ``resolve`` captures at most, and ``read`` answers, unless the caller says more."""
READ_BYTES_MAX: Final = 512 << 10
"""Of one ``read``: the answer is one message. Larger captures are read in pieces."""
URI_LENGTH_MAX: Final = 8_192

Uri = Annotated[str, Meta(min_length=1, max_length=URI_LENGTH_MAX)]
ByteCount = Annotated[int, Meta(ge=1)]
Offset = Annotated[int, Meta(ge=0)]

_REF: Final = re.compile(r"(blob|image):([0-9a-f]{64})")


class ResourceRef(NamedTuple):
    """The parts of a ref."""

    store: str
    """``blob``, or ``image`` for memory of sessions, which is never read as a resource."""
    digest: str


def parse_ref(text: str) -> ResourceRef | None:
    """The ref that ``text`` is; ``None`` for a URI."""
    if "://" in text:
        return None
    if (found := _REF.fullmatch(text)) is not None:
        return ResourceRef(found[1], found[2])
    if text.startswith(("blob:", "image:")):
        raise Refused("RESOURCE_URI_INVALID", f"{text[:80]!r} is no ref: blob:<64 hex digits>")
    return None


class ResolvedResource(ResourceResolution, frozen=True, kw_only=True):
    """A resource whose bytes are captured. The fields of its base are the contract's."""

    content: ContentRef | None = None
    """The captured bytes: digest, mime, size, scope and trust. ``artifact_ref`` is where they came
    from in the end. ``None`` for a ref that its owner registered, and for memory of a session."""
    etag: str = ""
    """What the server says of the version; a claim."""


class ResolveResource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Capture a resource for a session (verb ``resource_resolve``, key: the session)."""

    uri: Uri
    max_bytes: ByteCount = CAPTURE_BYTES
    """A longer resource is cut here, and ``truncated``."""


class ReadResource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Read captured bytes for a session, or capture and read at once (verb ``resource_read``, key:
    the session)."""

    uri: Uri
    """A URI, or a ref: one that the session's facts name, or with its ``grant``."""
    max_bytes: ByteCount = CAPTURE_BYTES
    offset: Offset = 0
    grant: SealedValue | UnsetType = UNSET
    """As ``resource_resolve`` answered it; for this session and ref alone."""


class ResourcesQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """List the schemes that a node resolves (verb ``resources``, any key)."""


class ResourceGrant(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to ``resource_resolve``."""

    resolution: ResolvedResource
    grant: SealedValue | UnsetType = UNSET
    """Lets the session's client read the ref; unset if nothing may read it."""


class ResourcePiece(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of a captured resource: the reply to ``resource_read``."""

    ref: str
    mime: str
    offset: int
    size_bytes: int
    """Of all that was captured."""
    data: bytes
    """Base64 in JSON."""
    truncated: bool
    """Whether bytes of the source are missing after this piece."""
    next_offset: int | None = None
    """Where the next captured piece begins, if there is one."""
    resolution: ResolvedResource | UnsetType = UNSET
    """If it was captured by the same request."""
    grant: SealedValue | UnsetType = UNSET
    """Lets the session's client read further pieces; only of a capture by the same request."""


class ListedScheme(msgspec.Struct, frozen=True, kw_only=True):
    """A scheme that a node resolves."""

    scheme: str
    form: str
    """How its URIs are written."""
    names: tuple[str, ...] = ()
    """What there is below it, where that is a short list: mounts, allowed servers, names."""


class ResourceList(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to ``resources``: by scheme."""

    schemes: tuple[ListedScheme, ...] = ()
