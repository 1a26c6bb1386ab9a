"""The fingerprint of a runtime package: one word for everything that is in force for a run.

It is the SHA-256 of key-sorted compact JSON, with lists in canonical order and without volatile
parts. (The contract has a golden vector for SHA-256; all other digests here are SHA3-256.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, Final

from rookery.schemas.digest import canonical_json
from rookery.schemas.ids import TypedText

__all__ = [
    "RUNTIME_PACKAGE_FINGERPRINT_ALGORITHM",
    "RUNTIME_PACKAGE_SCHEMA_VERSION",
    "RuntimePackageFingerprint",
    "package_fingerprint",
]

RUNTIME_PACKAGE_SCHEMA_VERSION: Final = 1
RUNTIME_PACKAGE_FINGERPRINT_ALGORITHM: Final = "sha256:runtime-package-canonical-v1"

_EXCLUDED: Final = ("hooks", "volatile")
"""Hooks count by their sidecars."""
_OPAQUE: Final = ("redacted_payload",)
"""JSON of other systems: its lists keep their order under any name."""


class RuntimePackageFingerprint(TypedText):
    __slots__ = ()


def package_fingerprint(snapshot: Mapping[str, Any]) -> RuntimePackageFingerprint:
    """The fingerprint of a package, independent of the order of its lists."""
    preimage = {
        "algorithm": RUNTIME_PACKAGE_FINGERPRINT_ALGORITHM,
        "canonical_schema_version": RUNTIME_PACKAGE_SCHEMA_VERSION,
        "snapshot": _canonical(
            {name: value for name, value in snapshot.items() if name not in _EXCLUDED}
        ),
    }
    digest = sha256(canonical_json(preimage)).hexdigest()
    return RuntimePackageFingerprint(f"{RUNTIME_PACKAGE_FINGERPRINT_ALGORITHM}:{digest}")


def _canonical(value: Any) -> Any:
    """``value`` with its unordered lists in canonical order."""
    match value:
        case Mapping():
            return {name: _ordered(name, inner) for name, inner in value.items()}
        case list() | tuple():
            return [_canonical(item) for item in value]
        case _:
            return value


def _ordered(name: str, value: Any) -> Any:
    if name in _OPAQUE:
        return value
    inner, key = _canonical(value), _ORDER.get(name)
    return sorted(inner, key=key) if key and isinstance(inner, list) else inner


def _by(name: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda item: str(item[name])


def _policy_key(policy: Mapping[str, Any]) -> str:
    kind = "".join(part.capitalize() for part in policy["kind"].split("_"))
    return f"{kind}:{policy['id']}:{policy.get('version') or ''}"


def _sidecar_key(ref: Mapping[str, Any]) -> str:
    parts = (ref["sidecar_id"], ref["kind"], ref["version"], ref.get("content_hash") or "")
    return ":".join(parts)


_ORDER: Final[dict[str, Callable[[Any], str]]] = {
    "allowed_kinds": str,
    "allowed_ref_kinds": str,
    "candidates": str,
    "capabilities": _by("capability_id"),
    "catalogs": _by("catalog_id"),
    "default_behavior_refs": _policy_key,
    "isolation_requirements": _by("requirement_ref"),
    "output_contracts": _by("schema_id"),
    "output_sinks": _by("sink_id"),
    "policy_refs": _policy_key,
    "refs": _sidecar_key,
    "reserved_feature_status": _by("capability_id"),
    "sidecar_refs": _sidecar_key,
    "sidecars": _by("sidecar_id"),
}
