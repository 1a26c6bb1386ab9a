"""The fingerprint of a package: the contract's golden vector, and changes without effect.

The vector's package is the canonical one of agent-sdk-core 0.1.0-alpha.4 (MIT or Apache-2.0).
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from rookery.schemas.seed.package import package_fingerprint

GOLDEN = (
    "sha256:runtime-package-canonical-v1:"
    "0960749181be6a3b5f26945235cc3fb9a0f9120c9a2c557e5675d90468b06555"
)


def policy(kind: str, text: str) -> dict[str, Any]:
    return {"kind": kind, "id": text}


SCHEMA_REF = {
    "sidecar_id": "sidecar.schema.workspace_read",
    "kind": "tool_schema",
    "version": "v1",
    "content_hash": "sha256:schema.v1",
}
CAPABILITY = {
    "capability_id": "cap.workspace_read",
    "kind": "tool",
    "source": {
        "kind": "test_only_fake",
        "source_ref": {
            "kind": "sdk",
            "id": "source.sdk.toolpack",
            "trust": "host_provided",
            "privacy": "content_refs_only",
        },
    },
    "namespace": "tool.workspace_read",
    "version": "v1",
    "visibility": "active",
    "projection": {"provider_tool_schema": {"schema_ref": SCHEMA_REF}},
    "executor_ref": "executor.workspace_read.v1",
    "policy_ref": policy("approval", "policy.approval.workspace_read"),
    "privacy": "content_refs_only",
    "readiness": {
        "status": "active",
        "owner_role": "02-runtime-package-p0-fake-tool",
        "typed_sidecar_contract": "capability.tool.schema_ref.executor_ref.policy_ref",
        "fingerprint_fields": [
            *("capability_id", "kind", "namespace", "version", "projection", "executor_ref"),
            *("policy_ref", "sidecar_refs", "source"),
        ],
        "emitted_events": ["capability_loaded", "tool_requested", "tool_completed"],
        "journal_records": [
            *("package_catalog_snapshot", "package_delta", "tool_execution_intent"),
            "tool_execution_result",
        ],
        "acceptance_tests": [
            "provider_visible_capability_requires_executor_and_policy_refs",
            "projection_and_execution_hashes_match",
        ],
    },
}
SIDECAR = {
    **SCHEMA_REF,
    "refs": [SCHEMA_REF],
    "policy_refs": [policy("approval", "policy.approval.workspace_read")],
}
PACKAGE: dict[str, Any] = {
    "schema_version": 1,
    "package_id": "package.contract",
    "agent": {
        "agent_id": "agent.contract",
        "name": "contract agent",
        "default_behavior_refs": [policy("runtime_package", "policy.agent.default")],
    },
    "provider_route": {"route_id": "provider.fake", "model_id": "model.fake.p0"},
    "provider_capabilities": {"capability_version": "provider.capabilities.v1"},
    "output_contracts": [],
    "output_sinks": [],
    "capabilities": [CAPABILITY],
    "sidecars": [SIDECAR],
    "isolation_requirements": [],
    "catalogs": [],
    "child_lifecycle": {
        "policy_ref": policy("runtime_package", "policy.child.safe-defaults"),
        "manual_cancel": "cancel_agent_owned_children",
        "detach_policy_ref": policy("runtime_package", "policy.detach.deny-by-default"),
        "cleanup_timeout_ms": 30_000,
    },
    "policies": {"policy_refs": [policy("runtime_package", "policy.package.default")]},
    "fingerprint_manifest": {
        "algorithm": "sha256:runtime-package-canonical-v1",
        "canonical_schema_version": 1,
        "readiness_profile": "p0_text",
        "included_groups": [
            *("agent", "provider_route", "output_contracts", "output_sinks", "capabilities"),
            *("sidecars", "isolation_requirements", "catalogs", "child_lifecycle", "policies"),
        ],
        "excluded_groups": [
            *("run_ids", "event_ids", "timestamps", "adapter_health", "temporary_paths"),
            "telemetry_sink_health",
        ],
        "reserved_feature_status": [],
    },
}


def test_the_golden_package_has_its_golden_fingerprint():
    fingerprint = package_fingerprint(PACKAGE)
    assert fingerprint.as_str() == str(fingerprint) == GOLDEN


def test_what_is_volatile_and_the_hooks_themselves_do_not_count():
    volatile = {"run_id": "r", "timestamp_ms": 1, "adapter_health": "bad"}
    assert str(package_fingerprint({**PACKAGE, "volatile": volatile, "hooks": [{}]})) == GOLDEN


def test_neither_the_order_of_lists_nor_that_of_keys_counts():
    other = {**CAPABILITY, "capability_id": "cap.another", "sidecar_refs": [SCHEMA_REF]}
    older = {**SCHEMA_REF, "version": "v0"}
    package = {
        **deepcopy(PACKAGE),
        "capabilities": [CAPABILITY, other],
        "sidecars": [{**SIDECAR, "refs": [SCHEMA_REF, older]}, {**SIDECAR, "sidecar_id": "a"}],
        "policies": {"policy_refs": [policy("sandbox", "b"), policy("approval", "z")]},
        "catalogs": [{"catalog_id": "c", "candidates": ["y", "x"]}],
    }
    turned = {
        **dict(reversed(package.items())),
        "capabilities": [other, CAPABILITY],
        "sidecars": [{**SIDECAR, "sidecar_id": "a"}, {**SIDECAR, "refs": [older, SCHEMA_REF]}],
        "policies": {"policy_refs": [policy("approval", "z"), policy("sandbox", "b")]},
        "catalogs": [{"candidates": ["x", "y"], "catalog_id": "c"}],
    }
    assert package_fingerprint(package) == package_fingerprint(turned)
    assert str(package_fingerprint(package)) != GOLDEN


def test_lists_in_foreign_json_keep_their_order():
    def holding(payload: Any) -> dict[str, Any]:
        return {**PACKAGE, "sidecars": [{**SIDECAR, "redacted_payload": payload}]}

    one, other = holding({"refs": ["b", "a"]}), holding({"refs": ["a", "b"]})
    assert package_fingerprint(one) != package_fingerprint(other)


@pytest.mark.parametrize(
    "change",
    [
        {"package_id": "package.other"},
        {"capabilities": []},
        {"capabilities": [{**CAPABILITY, "executor_ref": "executor.other"}]},
        {"policies": {"policy_refs": []}},
    ],
)
def test_everything_else_counts(change: dict[str, Any]):
    assert str(package_fingerprint({**PACKAGE, **change})) != GOLDEN
