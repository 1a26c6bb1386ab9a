"""``ContentRef``: content that is stored elsewhere, described without being sent along.

A ref gives no right to read the content. The content of a run's artifact is a blob of the realm,
under its hash.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from rookery.schemas.seed.refs import (
    DestinationRef,
    EntityRef,
    PrivacyClass,
    RetentionClass,
    SourceRef,
    TrustClass,
)

__all__ = ["ContentKind", "ContentRef", "ContentScope"]


class ContentKind(StrEnum):
    TEXT = "text"
    DOCUMENT = "document"
    IMAGE = "image"
    AUDIO = "audio"
    VIDEO = "video"
    FILE = "file"
    TOOL_RESULT = "tool_result"
    SCHEMA = "schema"
    STDOUT = "stdout"
    STDERR = "stderr"
    OUTPUT_PAYLOAD = "output_payload"
    MEMORY_RECORD = "memory_record"
    EXTERNAL = "external"


class ContentScope(StrEnum):
    """What the content belongs to."""

    RUN = "run"
    SESSION = "session"
    HOST_WORKSPACE = "host_workspace"
    EXTERNAL = "external"
    PERSISTENT_STORE = "persistent_store"


class ContentRef(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One piece of content."""

    content_id: str
    version: int = 1
    kind: ContentKind
    artifact_ref: str = ""
    """The name under which it was made: a file's path."""
    scope: ContentScope
    producer_ref: EntityRef | None = None
    source_ref: SourceRef | None = None
    destination_ref: DestinationRef | None = None
    mime: str
    size_bytes: int
    content_hash: str
    """SHA3-256 of the content, in hex."""
    privacy_class: PrivacyClass = PrivacyClass.CONTENT_REFS_ONLY
    retention_class: RetentionClass = RetentionClass.DURABLE
    trust_class: TrustClass = TrustClass.UNTRUSTED
    resolver_ref: str = ""
    """How to read the content: ``blob`` for ``rookery.<realm>.read.blobs.<content_hash>.0``."""
    redacted_summary: str | None = None
