"""How private, how long kept, how trusted: the classes every fact, record and ref carries.

Words only. What follows from a class - what is sealed, redacted, dropped or refused - is decided by
the concerns that hold the data.
"""

from __future__ import annotations

from enum import StrEnum

__all__ = ["PrivacyClass", "RetentionClass", "TrustClass"]


class PrivacyClass(StrEnum):
    """Who may see the content itself."""

    PUBLIC = "public"
    INTERNAL = "internal"
    CONTENT_REFS_ONLY = "content_refs_only"
    SENSITIVE = "sensitive"
    SECRET = "secret"  # noqa: S105 - a label, not a password.

    @property
    def allows_raw_content_by_default(self) -> bool:
        return self is PrivacyClass.PUBLIC


class RetentionClass(StrEnum):
    """How long something may be kept."""

    EPHEMERAL = "ephemeral"
    RUN_SCOPED = "run_scoped"
    SESSION_SCOPED = "session_scoped"
    DURABLE = "durable"
    PERSISTENT = "persistent"
    HOST_POLICY = "host_policy"


class TrustClass(StrEnum):
    """Where something came from, as far as that earns it trust."""

    TRUSTED = "trusted"
    SDK_GENERATED = "sdk_generated"
    HOST_PROVIDED = "host_provided"
    USER_PROVIDED = "user_provided"
    EXTERNAL = "external"
    UNTRUSTED = "untrusted"
