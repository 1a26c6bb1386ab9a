"""What a server returns, as a JSON value: texts as they are, and everything else as content refs to
the blob store."""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import mcp_types as types
import msgspec

from rookery.actors.protection.scrubber import Scrubber
from rookery.schemas.digest import digest_bytes
from rookery.schemas.errors import Failed
from rookery.schemas.seed.content import ContentKind, ContentRef, ContentScope

__all__ = [
    "CallResult",
    "Content",
    "call_result",
    "error_text",
    "resource_contents",
    "scrub_result",
]

PARTS_MAX: Final = 256
CONTENT_BYTES_MAX: Final = 16 << 20
"""Of all contents of one result."""
BESIDE: Final = "_content"
"""The key of what a server sends beside a structured content."""
_KINDS: Final = {kind.value: kind for kind in (ContentKind.AUDIO, ContentKind.IMAGE)}


class Content(NamedTuple):
    """Bytes that go to the blob store, and their ref."""

    ref: ContentRef
    data: bytes


class CallResult(NamedTuple):
    """The value of a call, and the contents that its refs name."""

    value: Any
    contents: tuple[Content, ...] = ()
    beside: tuple[dict[str, Any], ...] = ()
    """The parts beside a structured value, which no schema covers."""

    def joined(self) -> CallResult:
        """With these parts in the value, under a key of its own."""
        value = self.value
        if not self.beside:
            return self
        if not isinstance(value, dict) or BESIDE in value:
            value = {"structured": value}
        return CallResult({**value, BESIDE: list(self.beside)}, self.contents)


def call_result(result: types.CallToolResult, *, has_schema: bool) -> CallResult:
    """The structured content; without it the text, if there is nothing else, or else a list of
    parts. Texts beside a structured content only repeat it. Raises ``Failed``: a result is the
    server's claim."""
    contents: list[Content] = []
    if "structured_content" in result.model_fields_set and result.structured_content is not None:
        others = [one for one in result.content if not isinstance(one, types.TextContent)]
        beside = tuple(_part(block, contents) for block in _bounded(others))
        return CallResult(result.structured_content, tuple(contents), beside)
    if has_schema:
        raise Failed(
            "INVALID_RESULT", "the server declares an output schema and sent no such value"
        )
    match result.content:
        case [types.TextContent(text=text)]:
            return CallResult(text)
    return CallResult(
        [_part(block, contents) for block in _bounded(result.content)], tuple(contents)
    )


def error_text(result: types.CallToolResult) -> str:
    """What the server says of a failed call."""
    texts = [block.text for block in result.content if isinstance(block, types.TextContent)]
    return "\n".join(texts) or "the server gave no reason"


def resource_contents(result: types.ReadResourceResult) -> tuple[Content, ...]:
    contents: list[Content] = []
    for found in _bounded(result.contents):
        _add(contents, _resource(found))
    return tuple(contents)


def scrub_result(result: CallResult, scrubbers: Sequence[Scrubber]) -> CallResult:
    """The result without credentials. A content that has one is refused, for it cannot be changed
    and stay what it is."""
    value = result.value
    for scrubber in scrubbers:
        value = scrubber.scrub(value)
        for content in result.contents:
            text = content.data.decode("latin-1")
            if scrubber.scrub_text(text) != text:
                raise Failed("CREDENTIAL_EXPOSED", "the server put the credential into its result")
    return result._replace(value=value)


def _bounded(parts: Sequence[Any]) -> Iterable[Any]:
    if len(parts) > PARTS_MAX:
        raise Failed("INVALID_RESULT", f"the result has {len(parts)} parts, {PARTS_MAX} at most")
    return parts


def _part(block: types.ContentBlock, contents: list[Content]) -> dict[str, Any]:
    """A block as JSON."""
    match block:
        case types.TextContent(text=text):
            return {"type": "text", "text": text}
        case types.ImageContent() | types.AudioContent():
            kind = _KINDS[block.type]
            content = _content(_decoded(block.data), block.mime_type, kind, "")
            return {"type": block.type, "content": _add(contents, content)}
        case types.EmbeddedResource(resource=resource):
            content = _resource(resource)
            return {"type": "resource", "uri": resource.uri, "content": _add(contents, content)}
        case _:
            link = {"uri": block.uri, "name": block.name, "mime": block.mime_type}
            return {"type": "resource_link"} | {k: v for k, v in link.items() if v is not None}


def _resource(found: types.TextResourceContents | types.BlobResourceContents) -> Content:
    if isinstance(found, types.TextResourceContents):
        mime = found.mime_type or "text/plain"
        return _content(found.text.encode("utf-8", "replace"), mime, ContentKind.TEXT, found.uri)
    mime = found.mime_type or "application/octet-stream"
    kind = _KINDS.get(mime.partition("/")[0], ContentKind.FILE)
    return _content(_decoded(found.blob), mime, kind, found.uri)


def _content(data: bytes, mime: str, kind: ContentKind, uri: str) -> Content:
    digest = digest_bytes(data)
    ref = ContentRef(
        content_id=f"blob.{digest}",
        kind=kind,
        artifact_ref=uri[:1_000],
        scope=ContentScope.RUN,
        mime=mime[:128],
        size_bytes=len(data),
        content_hash=digest,
        resolver_ref="blob",
    )
    return Content(ref, data)


def _add(contents: list[Content], content: Content) -> Any:
    contents.append(content)
    if sum(len(one.data) for one in contents) > CONTENT_BYTES_MAX:
        raise Failed("PAYLOAD_TOO_LARGE", f"the contents have more than {CONTENT_BYTES_MAX} bytes")
    return msgspec.to_builtins(content.ref)


def _decoded(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Failed("INVALID_RESULT", "a content of the result is not base64") from None
