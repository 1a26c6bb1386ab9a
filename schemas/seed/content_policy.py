"""Which content may be shown or captured. Raw content needs all consents, and a limit."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from rookery.schemas.seed.privacy import PrivacyClass, RetentionClass, TrustClass
from rookery.schemas.seed.refs import PolicyRef

__all__ = ["ContentCaptureMode", "ContentCapturePolicy", "PrivacyPolicy"]


class PrivacyPolicy(msgspec.Struct, frozen=True, kw_only=True):
    policy_ref: PolicyRef
    minimum_privacy: PrivacyClass
    retention: RetentionClass
    trust_required: TrustClass

    @classmethod
    def safe_defaults(cls, policy_ref: PolicyRef) -> PrivacyPolicy:
        return cls(
            policy_ref=policy_ref,
            minimum_privacy=PrivacyClass.INTERNAL,
            retention=RetentionClass.RUN_SCOPED,
            trust_required=TrustClass.TRUSTED,
        )


class ContentCaptureMode(StrEnum):
    OFF = "Off"
    METADATA_ONLY = "MetadataOnly"
    REDACTED_SUMMARY = "RedactedSummary"
    RAW_CONTENT = "RawContent"


class ContentCapturePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The defaults capture nothing."""

    policy_ref: PolicyRef
    mode: ContentCaptureMode = ContentCaptureMode.OFF
    source_permits_content: bool = False
    sink_permits_content: bool = False
    redaction_required: bool = True
    retention_required: bool = True
    sampling_required: bool = True
    byte_limit: int = 0

    @property
    def allows_raw_content(self) -> bool:
        return (
            self.mode is ContentCaptureMode.RAW_CONTENT
            and self.source_permits_content
            and self.sink_permits_content
            and self.redaction_required
            and self.retention_required
            and self.sampling_required
            and self.byte_limit > 0
        )
