"""The contract of hooks: matrix, presets, rights, validation, order, hash, inputs and responses."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from rookery.actors.hooks.executors.ports import HookExecutors, validate_package_hooks
from rookery.schemas.codec import encode_json
from rookery.schemas.ids import HookExecutorRef, HookId, IdEmpty, PolicyId, decode_typed_text
from rookery.schemas.seed.agent_error import AgentError, AgentErrorKind, RetryClassification
from rookery.schemas.seed.hook import HookFailurePolicy, HookPoint, HookResponseClass
from rookery.schemas.seed.hook_invocation import (
    AnyHookResponse,
    HookCancellationToken,
    HookInput,
    ToolRequestPatch,
)
from rookery.schemas.seed.hook_spec import (
    HookMutationRights,
    HookOrdering,
    HookOrderingPhase,
    HookQueueConfig,
    HookSource,
    HookSpec,
    HookTimeoutPolicy,
    NonBlockingHook,
    hook_policy_ref,
    ordered_hooks_for_point,
)
from tests.hooks.hook_cells import valid_specs
from tests.hooks.hook_fixtures import (
    CLASSES,
    CONTEXT,
    CRITICAL,
    MATRIX,
    RESPONSES,
    VIEW,
    ScriptedExecutor,
    observer,
    one_right_specs,
    response_json,
    spec,
)

GOLDEN = "sha256:84ace2312950b68b1a55135021a62c8d1d260dfeb7117bb1afc91251a6d93956"
OBSERVE = HookSpec.observe(
    "audit.before_context",
    HookPoint.BEFORE_CONTEXT_ASSEMBLY,
    HookSource.IN_PROCESS,
    "executor.audit.before_context",
    hook_policy_ref("policy.hooks.observe"),
)


def decoded(value: Any, kind: Any) -> Any:
    return msgspec.convert(value, kind, dec_hook=decode_typed_text)


def refusal(one: HookSpec) -> str:
    """The message of the first broken rule; empty for a valid spec."""
    try:
        one.validate()
    except AgentError as error:
        form = (error.kind, error.retry)
        if form == (AgentErrorKind.INVALID_PACKAGE, RetryClassification.HOST_CONFIGURATION_NEEDED):
            return error.context.message
        raise
    return ""


# --- matrix ---------------------------------------------------------------------------------------


def test_the_matrix_has_22_points_20_classes_and_55_pairs():
    found = {
        point.value: {one.value for one in point.allowed_response_classes} for point in HookPoint
    }
    assert list(found) == list(MATRIX)
    assert found == {point: set(classes) for point, classes in MATRIX.items()}
    assert [one.value for one in HookResponseClass] == list(CLASSES)
    assert (len(found), len(CLASSES)) == (22, 20)
    assert sum(map(len, found.values())) == 55


def test_five_points_are_critical():
    assert tuple(point.value for point in HookPoint if point.is_security_critical) == CRITICAL


def test_of_3520_specs_with_one_right_265_are_valid():
    messages = Counter(refusal(one).partition(" right ")[0] for one in one_right_specs())
    assert messages == {
        "": 265,
        "hook mutation": 3_080,
        "nonblocking hooks must be observe-only in the first Rust slice": 132,
        "security-relevant hooks cannot use fail-open failure policy": 43,
    }
    assert len(valid_specs()) == 265


# --- presets and rights ---------------------------------------------------------------------------


def test_the_preset_of_an_observer_has_the_contracts_values():
    assert json.loads(encode_json(OBSERVE)) == {
        "hook_id": "audit.before_context",
        "point": "before_context_assembly",
        "source": "in_process",
        "ordering": {"phase": "normal", "order": 100},
        "execution": {
            "mode": "non_blocking",
            "queue": {"capacity": 64, "terminal_reserve": 4},
            "overflow": "drop_observe_only",
        },
        "timeout": {"timeout_ms": 250},
        "failure": "fail_open_observe_only",
        "mutation_rights": {"rights": ["observe"]},
        "privacy": "envelope_and_redacted_summary",
        "policy_ref": {"kind": "runtime_package", "id": "policy.hooks.observe"},
        "executor_ref": "executor.audit.before_context",
    }


def test_the_preset_of_a_blocking_hook_differs_in_execution_failure_and_rights():
    blocking = HookSpec.blocking(
        "audit.before_context",
        OBSERVE.point,
        OBSERVE.source,
        "executor.audit.before_context",
        OBSERVE.policy_ref,
        mutation_rights=HookMutationRights.from_rights([HookResponseClass.INJECT_CONTEXT]),
    )
    changed = {
        "execution": {"mode": "blocking"},
        "failure": "interrupt_run",
        "mutation_rights": {"rights": ["observe", "inject_context"]},
    }
    assert json.loads(encode_json(blocking)) == json.loads(encode_json(OBSERVE)) | changed


def test_rights_are_a_set_in_the_order_of_the_classes_and_include_observe():
    stop, deny = HookResponseClass.STOP_RUN, HookResponseClass.DENY
    rights = HookMutationRights.from_rights([stop, deny, stop])
    assert encode_json(rights) == b'{"rights":["observe","deny","stop_run"]}'
    assert decoded({"rights": ["stop_run", "deny", "observe"]}, HookMutationRights) == rights
    both = HookMutationRights.deny_or_request_approval()
    assert encode_json(both) == b'{"rights":["observe","deny","request_approval"]}'
    assert not HookMutationRights.observe_only().can_change_behavior


@pytest.mark.parametrize("right", HookResponseClass)
def test_a_right_allows_exactly_its_class(right: HookResponseClass):
    rights = HookMutationRights.from_rights([right])
    allowed = {one for one in HookResponseClass if rights.allows_response_class(one)}
    assert allowed == {HookResponseClass.OBSERVE, right}


# --- validation -----------------------------------------------------------------------------------

NO_TIME = HookTimeoutPolicy(timeout_ms=0)
NO_POLICY = hook_policy_ref("p")
msgspec.structs.force_setattr(NO_POLICY, "id", object.__new__(PolicyId))
NO_POLICY.id._text = ""
FAIL_OPEN = HookFailurePolicy.FAIL_OPEN_OBSERVE_ONLY
BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"timeout": NO_TIME}, "hook timeout_ms must be greater than zero"),
    ({"policy_ref": NO_POLICY}, "hook policy_ref is required"),
    (
        {"mutation_rights": HookMutationRights.from_rights([HookResponseClass.STOP_RUN])},
        "hook mutation right StopRun is not allowed at BeforeToolCall",
    ),
    (
        {"execution": NonBlockingHook()},
        "nonblocking hooks must be observe-only in the first Rust slice",
    ),
    ({"failure": FAIL_OPEN}, "security-relevant hooks cannot use fail-open failure policy"),
]


@pytest.mark.parametrize("first", range(len(BROKEN)))
def test_the_first_broken_rule_wins(first: int):
    """Rule 3 replaces the rights, which the others need."""
    changes: dict[str, Any] = {}
    for change, _ in reversed(BROKEN[first:]):
        changes |= change
    one = spec(HookPoint.BEFORE_TOOL_CALL, HookResponseClass.DENY)
    assert refusal(one) == ""
    assert refusal(replace(one, **changes)) == BROKEN[first][1]


def test_an_empty_policy_hook_id_or_executor_is_not_even_an_id():
    for kind in (PolicyId, HookId, HookExecutorRef):
        with pytest.raises(IdEmpty):
            kind("")


@pytest.mark.parametrize("field", ["capacity", "terminal_reserve"])
def test_a_queue_has_no_zero(field: str):
    with pytest.raises(msgspec.ValidationError):
        decoded({field: 0}, HookQueueConfig)


def test_a_package_is_refused_for_an_invalid_spec_before_a_missing_executor():
    one, other = spec(hook_id="one"), spec(hook_id="other")
    executors = HookExecutors([ScriptedExecutor(one)])
    validate_package_hooks([one], executors)
    missing = "hook executor executor.other is not resolved before start_run"
    with pytest.raises(AgentError, match=missing) as caught:
        validate_package_hooks([other, one], executors)
    assert caught.value.kind is AgentErrorKind.INVALID_PACKAGE
    assert caught.value.retry is RetryClassification.HOST_CONFIGURATION_NEEDED
    with pytest.raises(AgentError, match="greater than zero"):
        validate_package_hooks([other, replace(one, timeout=NO_TIME)], executors)


# --- order and hash -------------------------------------------------------------------------------


def test_hooks_are_sorted_by_point_phase_order_and_id():
    early, late = HookOrderingPhase.EARLY, HookOrderingPhase.LATE
    ordered = [
        observer(HookPoint.RUN_STARTING, "z"),
        observer(HookPoint.AFTER_TOOL_CALL, "y"),
        replace(spec(hook_id="x"), ordering=HookOrdering(phase=early, order=2**31 - 1)),
        replace(spec(hook_id="w"), ordering=HookOrdering(order=-(2**31))),
        replace(spec(hook_id="B"), ordering=HookOrdering(order=100)),
        spec(hook_id="a"),
        spec(hook_id="b"),
        replace(spec(hook_id="a1"), ordering=HookOrdering(order=101)),
        replace(spec(hook_id="a0"), ordering=HookOrdering(phase=late, order=0)),
    ]
    by_point = [one for one in ordered if one.point is HookPoint.BEFORE_TOOL_CALL]
    assert ordered_hooks_for_point(ordered[::-1], HookPoint.BEFORE_TOOL_CALL) == tuple(by_point)
    points = [one.point for one in sorted(ordered, key=HookSpec.sort_key)]
    assert points == [
        HookPoint.RUN_STARTING,
        *[HookPoint.BEFORE_TOOL_CALL] * 7,
        HookPoint.AFTER_TOOL_CALL,
    ]


def test_the_hash_of_a_spec_is_the_contracts():
    assert OBSERVE.spec_hash() == GOLDEN


@pytest.mark.parametrize("name", HookSpec.__struct_fields__)
def test_every_field_of_a_spec_is_part_of_its_hash(name: str):
    other = HookSpec.blocking(
        "other",
        HookPoint.RUN_STARTING,
        HookSource.EXTENSION,
        "executor.other",
        hook_policy_ref("other"),
        mutation_rights=HookMutationRights.from_rights([HookResponseClass.INJECT_CONTEXT]),
    )
    changes: dict[str, Any] = {name: getattr(other, name)}
    match name:
        case "ordering":
            changes[name] = HookOrdering(order=1)
        case "timeout":
            changes[name] = HookTimeoutPolicy(timeout_ms=1)
        case "privacy":
            changes[name] = "content_refs_only"
        case "mutation_rights":
            changes |= {"execution": other.execution, "failure": other.failure}
    base = replace(OBSERVE, **{key: changes[key] for key in changes if key != name})
    assert replace(base, **changes).spec_hash() != base.spec_hash()


def test_an_invalid_spec_has_no_hash():
    with pytest.raises(AgentError):
        replace(OBSERVE, timeout=NO_TIME).spec_hash()


def test_the_record_of_a_registration_names_hash_executor_and_policy():
    assert json.loads(encode_json(OBSERVE.registered()))["payload"] == {
        "type": "registered",
        "spec_hash": GOLDEN,
        "executor_ref": "executor.audit.before_context",
        "policy_ref": {"kind": "runtime_package", "id": "policy.hooks.observe"},
    }


# --- input and responses --------------------------------------------------------------------------


@pytest.mark.parametrize("word", CLASSES)
def test_a_response_has_type_and_payload_on_the_wire(word: str):
    response = RESPONSES[HookResponseClass(word)]
    assert json.loads(encode_json(response)) == response_json(word)
    assert response.response_class is HookResponseClass(word)
    assert response.changes_behavior is (word != "observe")


@pytest.mark.parametrize(
    "garbage",
    [
        {},
        {"type": "observe"},
        {"type": "allow"},
        {"type": "deny"},
        {"type": "deny", "payload": {"redacted_summary": "s"}},
        {"type": "modify_tool_request", "payload": "yes"},
        {"payload": {"redacted_summary": "s"}},
    ],
)
def test_what_is_no_response_is_refused(garbage: dict[str, Any]):
    with pytest.raises(msgspec.ValidationError):
        decoded(garbage, AnyHookResponse)


def test_a_change_to_null_differs_from_no_change():
    patch = {"redacted_summary": "s", "arguments_patch": None}
    assert decoded(patch, ToolRequestPatch).arguments_patch is None
    assert encode_json(decoded(patch, ToolRequestPatch)) == encode_json(patch)


ABSENT = ("turn_id", "attempt_id", "destination")


def test_an_input_has_the_contracts_fields_and_omits_what_is_absent():
    hook_input = HookInput(
        hook_id=HookId("audit"),
        point=HookPoint.RUN_STARTING,
        run_id=CONTEXT.run_id,
        agent_id=CONTEXT.agent_id,
        source=CONTEXT.source,
        package_fingerprint=CONTEXT.package_fingerprint,
        view=VIEW,
        policy_refs=(hook_policy_ref("p"),),
        cancellation=HookCancellationToken(),
    )
    written = json.loads(encode_json(hook_input))
    assert set(written) == {*HookInput.__struct_fields__} - {*ABSENT}
    assert written["view"] == {
        "privacy": "content_refs_only",
        "redacted_summary": "pay: amount: a number",
    }
    assert written["cancellation"] == {"cancelled": False}
    assert decoded(written, HookInput) == hook_input
    assert HookInput.__struct_fields__ == (
        *("hook_id", "point", "run_id", "agent_id", "turn_id", "attempt_id", "source"),
        *("destination", "package_fingerprint", "view", "policy_refs", "cancellation"),
    )
