"""The package of a run: everything that is in force for it, under one fingerprint. Pure.

A hook is in it by its sidecar, which names the hash of its spec.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET

from rookery.schemas.calls import AvailableTool, RunEnvironment
from rookery.schemas.ids import encode_typed_text
from rookery.schemas.seed.hook_spec import (
    HOOK_SIDECAR_KIND,
    HOOK_SIDECAR_VERSION,
    HookSpec,
    invalid_package,
)
from rookery.schemas.seed.package import (
    RUNTIME_PACKAGE_SCHEMA_VERSION,
    RuntimePackageFingerprint,
    package_fingerprint,
)

__all__ = ["check_sidecars", "hook_sidecar", "run_fingerprint", "run_package"]

PACKAGE_ID: Final = "rookery.run"


def hook_sidecar(spec: HookSpec) -> dict[str, Any]:
    """The sidecar of a valid spec."""
    content_hash, policy = spec.spec_hash(), spec.policy_ref
    sidecar = {
        "sidecar_id": spec.sidecar_id(),
        "kind": HOOK_SIDECAR_KIND,
        "version": HOOK_SIDECAR_VERSION,
        "content_hash": content_hash,
    }
    policies = [msgspec.to_builtins(policy, enc_hook=encode_typed_text)]
    return {**sidecar, "refs": [sidecar], "policy_refs": policies}


def check_sidecars(package: Mapping[str, Any], specs: Sequence[HookSpec]) -> None:
    """Raise ``AgentError`` if a hook's sidecar is missing in the package, or is not the hook's."""
    stored = {one["sidecar_id"]: one for one in package.get("sidecars", ())}
    for spec in specs:
        expected = hook_sidecar(spec)
        found = stored.get(expected["sidecar_id"])
        if found != expected:
            problem = "has no sidecar" if found is None else "differs from its sidecar"
            raise invalid_package(f"hook {spec.hook_id.as_str()} {problem} in the package")


def run_package(environment: RunEnvironment, specs: Sequence[HookSpec] = ()) -> dict[str, Any]:
    """The package of a run in an environment: its tools, hooks, policy and guest."""
    return {
        "schema_version": RUNTIME_PACKAGE_SCHEMA_VERSION,
        "package_id": PACKAGE_ID,
        "capabilities": [_capability(tool) for tool in environment.tools],
        "catalogue": environment.catalogue,
        "surfaces": _surfaces(environment),
        "sidecars": [hook_sidecar(spec) for spec in specs],
        "policies": {"digest": environment.policy or ""},
        "guest": {"language": environment.language.value, "build": environment.build},
    }


def run_fingerprint(
    environment: RunEnvironment, specs: Sequence[HookSpec] = ()
) -> RuntimePackageFingerprint:
    """The fingerprint of the package of a run; the order of tools and hooks does not count."""
    return package_fingerprint(run_package(environment, specs))


def _surfaces(environment: RunEnvironment) -> dict[str, Any]:
    """The tools of surfaces, by the digests of their lists."""
    seen = environment.surfaces
    return {} if seen is UNSET else {"lists": list(seen.lists), "without": list(seen.without)}


def _capability(tool: AvailableTool) -> dict[str, Any]:
    """What a tool is; what the run has a right to is not part of the package."""
    return {
        "capability_id": tool.name,
        "kind": "tool",
        "schema_digest": tool.schema_digest,
        "side_effect": tool.side_effect.value,
    }
