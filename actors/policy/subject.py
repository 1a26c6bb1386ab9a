"""What a policy sees of a call: its tool, the permissions it needs, and where it is executed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeVar

from msgspec import UNSET

from rookery.schemas.calls import Capability
from rookery.schemas.protection.policy import ALL_DECISIONS, effect_class_of, risk_of
from rookery.schemas.seed.policies import CapabilityPermission
from rookery.schemas.seed.policy_decisions import ApprovalDecisionKind, EffectClass, RiskClass
from rookery.schemas.seed.refs import DestinationKind, DestinationRef, SourceKind, SourceRef
from rookery.schemas.surfaces import SurfaceKind

__all__ = ["PolicySubject"]

T = TypeVar("T")

ADDRESSES: Final = ("url", "uri")
"""Arguments that name a host."""
PROCESS: Final = "process"
"""The isolation of a server that the node starts."""
_ADAPTERS: Final = {SurfaceKind.MCP_STDIO: PROCESS}
_FOREIGN: Final = (SurfaceKind.MCP_STDIO, SurfaceKind.MCP_HTTP)
_RISKS: Final = tuple(RiskClass)
_OF_SCHEMES: Final[Mapping[str, CapabilityPermission]] = {
    "file": CapabilityPermission.FILESYSTEM_READ,
    "http": CapabilityPermission.NETWORK,
    "https": CapabilityPermission.NETWORK,
    "mcp": CapabilityPermission.MCP,
}
"""What a resource of a scheme needs; of all others the session itself has the bytes."""


class PolicySubject(NamedTuple):
    """A tool, as policies see it."""

    name: str
    surface: str
    effect_class: EffectClass
    risk: RiskClass
    """Declared, or by side effect; a foreign surface's is high at least."""
    allowed_decisions: tuple[ApprovalDecisionKind, ...] = ALL_DECISIONS
    permissions: tuple[CapabilityPermission, ...] | None = None
    """Declared or derived; ``None`` if none is known."""
    by_scheme: bool = False
    """Whether the permissions are those of the URI in the call."""
    adapter: str = ""
    """What isolates its calls from the node; empty: nothing."""
    names_host: bool = False
    """Whether an argument names a host."""

    @classmethod
    def of(
        cls, surface: str, kind: SurfaceKind, capability: Capability, *, by_scheme: bool
    ) -> PolicySubject:
        """``by_scheme``: whether it reads resources."""
        is_foreign, permissions = kind in _FOREIGN, capability.permissions
        derived = (CapabilityPermission.MCP,) if is_foreign else None
        schema = capability.input_schema
        properties = schema.get("properties", ()) if isinstance(schema, dict) else ()
        return cls(
            name=capability.name,
            surface=surface,
            effect_class=effect_class_of(capability.side_effect),
            risk=_risk(capability, is_foreign=is_foreign),
            allowed_decisions=capability.allowed_decisions or ALL_DECISIONS,
            permissions=derived if permissions is UNSET else permissions,
            by_scheme=by_scheme,
            adapter=_ADAPTERS.get(kind, ""),
            names_host=any(name in properties for name in ADDRESSES),
        )

    @property
    def path(self) -> str:
        return f"{self.surface}/{self.name}"

    @property
    def source(self) -> SourceRef:
        return SourceRef.new(self.path, SourceKind.TOOL)

    @property
    def destination(self) -> DestinationRef:
        return DestinationRef.new(self.path, DestinationKind.TOOL)

    def is_at(self, path: str) -> bool:
        """Whether the tool is at a path of the settings: everywhere, a surface, or itself."""
        return path in ("", self.surface, self.path)

    def entry_of(self, entries: Mapping[str, T], default: T) -> T:
        """The entry of the tool, else of its surface."""
        return entries.get(self.path, entries.get(self.surface, default))

    def needed(self, arguments: Any) -> tuple[CapabilityPermission, ...] | None:
        """The permissions that a call with these arguments needs; ``None`` if none is known."""
        if not self.by_scheme:
            return self.permissions
        if arguments is None:
            return tuple(dict.fromkeys(_OF_SCHEMES.values()))
        scheme, separator, _ = self.address_in(arguments).partition("://")
        found = _OF_SCHEMES.get(scheme) if separator else None
        return () if found is None else (found,)

    def uses_network(self, needed: tuple[CapabilityPermission, ...] | None) -> bool:
        return needed is not None and CapabilityPermission.NETWORK in needed

    def address_in(self, arguments: Any) -> str:
        """The URL or URI in the arguments; empty if there is none."""
        if not isinstance(arguments, Mapping):
            return ""
        found = (arguments[name] for name in ADDRESSES if name in arguments)
        return next((value for value in found if isinstance(value, str)), "")


def _risk(capability: Capability, *, is_foreign: bool) -> RiskClass:
    if capability.risk is not UNSET:
        return capability.risk
    derived = risk_of(capability.side_effect, idempotent=capability.idempotent)
    return max(derived, RiskClass.HIGH, key=_RISKS.index) if is_foreign else derived
