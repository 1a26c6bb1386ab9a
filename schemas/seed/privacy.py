"""Classes of privacy, retention and trust, carried by every fact, record and ref.

The owners of the data decide what a class means: what is sealed, redacted, dropped or refused.
"""

from __future__ import annotations

from enum import StrEnum

__all__ = ["PrivacyClass", "RetentionClass", "TrustClass"]


class PrivacyClass(StrEnum):
    """The readers that may see the content itself."""

    PUBLIC = "public"
    INTERNAL = "internal"
    CONTENT_REFS_ONLY = "content_refs_only"
    SENSITIVE = "sensitive"
    SECRET = "secret"  # noqa: S105 - a label, not a password.

    @property
    def allows_raw_content_by_default(self) -> bool:
        return self is PrivacyClass.PUBLIC


class RetentionClass(StrEnum):
    """How long the data may be stored."""

    EPHEMERAL = "ephemeral"
    RUN_SCOPED = "run_scoped"
    SESSION_SCOPED = "session_scoped"
    DURABLE = "durable"
    PERSISTENT = "persistent"
    HOST_POLICY = "host_policy"


class TrustClass(StrEnum):
    """The origin of the data, as far as it justifies trust."""

    TRUSTED = "trusted"
    SDK_GENERATED = "sdk_generated"
    HOST_PROVIDED = "host_provided"
    USER_PROVIDED = "user_provided"
    EXTERNAL = "external"
    UNTRUSTED = "untrusted"
