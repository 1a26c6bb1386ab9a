"""Seed 002: requests for a resource, and their results: a ref instead of the bytes."""

from __future__ import annotations

import re
from typing import Any, ClassVar, Final

import msgspec

from rookery.schemas.ids import ContentRef, TypedText
from rookery.schemas.seed.refs import PolicyRef, PrivacyClass, RetentionClass, SourceRef

__all__ = ["ResourceReadRequest", "ResourceResolution", "ResourceScheme"]

_SCHEME: Final = r"[A-Za-z0-9+.-]+"


class ResourceScheme(TypedText):
    """The text before ``://``; case counts."""

    __slots__ = ()

    SCHEMA: ClassVar[dict[str, Any]] = {"type": "string", "pattern": f"^{_SCHEME}$"}

    @classmethod
    def check(cls, text: str) -> None:
        if not text:
            raise ValueError("ResourceScheme must not be empty")
        if not re.fullmatch(_SCHEME, text):
            raise ValueError("ResourceScheme must use URI scheme characters")


class ResourceReadRequest(msgspec.Struct, frozen=True, kw_only=True):
    uri: str
    source: SourceRef
    policy_refs: tuple[PolicyRef, ...]
    max_bytes: int


class ResourceResolution(msgspec.Struct, frozen=True, kw_only=True):
    uri: str
    scheme: ResourceScheme
    content_ref: ContentRef
    source: SourceRef
    policy_refs: tuple[PolicyRef, ...]
    byte_len: int
    truncated: bool
    parser_version: str
    privacy: PrivacyClass
    retention: RetentionClass
    redacted_summary: str
