"""Permissions: which source may use which capability, by grants; the default is to deny.

A check is a look-up. The realm provides the grants.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from rookery.schemas.seed.policy import PolicyDecision, PolicyOutcome, PolicyStage
from rookery.schemas.seed.privacy import PrivacyClass, RetentionClass
from rookery.schemas.seed.refs import DestinationRef, EntityRef, PolicyRef, SourceRef

__all__ = [
    "CapabilityPermission",
    "PermissionGrant",
    "PermissionPolicy",
    "PermissionRequest",
]


class CapabilityPermission(StrEnum):
    """The capabilities that a grant may permit."""

    FILESYSTEM_READ = "FilesystemRead"
    FILESYSTEM_WRITE = "FilesystemWrite"
    NETWORK = "Network"
    SHELL = "Shell"
    MCP = "Mcp"
    MEDIA = "Media"
    CONTACTS = "Contacts"
    MEMORY_READ = "MemoryRead"
    MEMORY_WRITE = "MemoryWrite"
    OUTPUT_DELIVERY = "OutputDelivery"


class PermissionRequest(msgspec.Struct, frozen=True, kw_only=True):
    stage: PolicyStage
    source: SourceRef
    destination: DestinationRef
    capability: CapabilityPermission
    subject: EntityRef | None = None
    privacy: PrivacyClass
    retention: RetentionClass


class PermissionGrant(msgspec.Struct, frozen=True, kw_only=True):
    """The decision on this capability for exactly this source, its labels included."""

    source: SourceRef
    capability: CapabilityPermission
    decision: PolicyDecision

    def matches(self, request: PermissionRequest) -> bool:
        return self.source == request.source and self.capability is request.capability


class PermissionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The first grant that matches decides, else the default."""

    policy_ref: PolicyRef
    grants: tuple[PermissionGrant, ...] = ()
    default_decision: PolicyDecision

    @classmethod
    def deny_all(cls, policy_ref: PolicyRef) -> PermissionPolicy:
        return cls(
            policy_ref=policy_ref,
            default_decision=PolicyDecision.deny("permission.default_deny"),
        )

    def check(self, request: PermissionRequest) -> PolicyOutcome:
        granted = (grant.decision for grant in self.grants if grant.matches(request))
        return PolicyOutcome(
            stage=request.stage,
            decision=next(granted, self.default_decision),
            subject=request.subject,
            source=request.source,
            destination=request.destination,
            policy_refs=(self.policy_ref,),
            privacy=request.privacy,
            retention=request.retention,
        )
