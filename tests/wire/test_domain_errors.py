"""Agent errors: the short forms, the classified form, and both on the wire."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from rookery.schemas.codec import encode_json
from rookery.schemas.ids import RunId, decode_typed_text
from rookery.schemas.seed.agent_error import (
    AgentError,
    AgentErrorForm,
    AgentErrorKind,
    CausalIds,
    ErrorContext,
    RetryClassification,
)
from rookery.schemas.seed.refs import EntityRef

SHORT = [
    (
        AgentError.missing_required_field("f"),
        {"MissingRequiredField": {"field": "f"}},
        ("InvalidPackage", "HostConfigurationNeeded", "missing required field: f"),
        "missing required field: f",
    ),
    (
        AgentError.contract_violation("m"),
        {"ContractViolation": {"message": "m"}},
        ("InvalidStateTransition", "RepairNeeded", "m"),
        "contract violation: m",
    ),
    (
        AgentError.host_configuration_needed("m"),
        {"HostConfigurationNeeded": {"message": "m"}},
        ("HostConfigurationNeeded", "HostConfigurationNeeded", "m"),
        "host configuration needed: m",
    ),
]
TIMEOUT = AgentError.new(AgentErrorKind.TIMEOUT, RetryClassification.RETRYABLE, "m")
EMPTY_CONTEXT = {
    "message": "m",
    "policy_refs": [],
    "source": None,
    "destination": None,
    "subject": None,
    "privacy": None,
    "redacted_summary": None,
}
NO_IDS = {
    "run_id": None,
    "turn_id": None,
    "attempt_id": None,
    "event_id": None,
    "tool_call_id": None,
    "span_id": None,
    "related": [],
}


@pytest.mark.parametrize(("error", "golden", "implied", "shown"), SHORT)
def test_a_short_form_implies_kind_and_retry(
    error: AgentError, golden: dict[str, Any], implied: tuple[str, str, str], shown: str
):
    assert json.loads(encode_json(error.form)) == golden
    assert (error.kind, error.retry, error.context.message) == implied
    assert error.causal_ids == CausalIds()
    assert str(error) == shown


@pytest.mark.parametrize("error", [*(row[0] for row in SHORT), TIMEOUT])
def test_anything_added_classifies_and_keeps_what_was_implied(error: AgentError):
    grown = error.with_causal_ids(CausalIds(run_id=RunId("r")))
    grown = grown.with_subject(EntityRef.run(RunId("r")))
    assert (grown.kind, grown.retry) == (error.kind, error.retry)
    assert grown.causal_ids == CausalIds(run_id=RunId("r"))
    assert grown.context == ErrorContext(
        message=error.context.message,
        subject=EntityRef.run(RunId("r")),
    )
    assert grown.form.classified is not None


def test_a_classified_error_writes_every_field():
    golden = {
        "Classified": {
            "kind": "Timeout",
            "retry": "Retryable",
            "context": EMPTY_CONTEXT,
            "causal_ids": NO_IDS,
        }
    }
    assert json.loads(encode_json(TIMEOUT.form)) == golden
    assert str(TIMEOUT) == "Timeout: m"


@pytest.mark.parametrize("error", [*(row[0] for row in SHORT), TIMEOUT])
def test_an_error_round_trips_and_equal_forms_are_equal(error: AgentError):
    form = msgspec.json.decode(
        encode_json(error.form), type=AgentErrorForm, dec_hook=decode_typed_text
    )
    assert AgentError(form) == error
    assert hash(AgentError(form)) == hash(error)
    assert AgentError(form) != AgentError.contract_violation("something else")


@pytest.mark.parametrize(
    "body",
    [
        "{}",
        '{"ContractViolation":null}',
        '{"ContractViolation":{"message":"m"},"MissingRequiredField":{"field":"f"}}',
        '{"NoSuchCase":{}}',
    ],
)
def test_an_error_is_exactly_one_of_its_forms(body: str):
    with pytest.raises(
        msgspec.ValidationError, match="AgentErrorForm needs exactly one of Missing"
    ):
        msgspec.json.decode(body, type=AgentErrorForm, dec_hook=decode_typed_text)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (
            AgentErrorKind,
            "InvalidPackage InvalidStateTransition ProviderFailure ProjectionFailure ToolFailure "
            "ApprovalFailure PolicyDenial JournalFailure TelemetryFailure IsolationFailure "
            "StructuredOutputFailure StreamRuleFailure SubagentFailure ExtensionFailure "
            "Cancellation ChildLifecycleFailure HookFailure Timeout RecoveryRepairNeeded "
            "HostConfigurationNeeded",
        ),
        (
            RetryClassification,
            "Retryable NotRetryable RepairNeeded UserActionNeeded HostConfigurationNeeded",
        ),
    ],
)
def test_the_words_of_the_contract_are_the_words_of_the_wire(kind: Any, words: str):
    assert [member.value for member in kind] == words.split()
