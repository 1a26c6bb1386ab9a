"""Seed 000 on the wire: every field is written, and every default is the contract's."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from rookery.schemas import run

LIMITS = {
    "memory_mb": 64,
    "cpu_ms": 2_000,
    "wall_ms": 5_000,
    "max_stdout_bytes": 65_536,
    "max_external_calls": 32,
    "max_stack_depth": 256,
}
METRICS = {
    "duration_ms": 0,
    "memory_peak_bytes": 0,
    "instructions": 0,
    "external_calls_count": 0,
}
SEED = [
    (run.SessionLimits(), LIMITS),
    (
        run.SessionMeta(),
        {
            "id": "default",
            "created_at": 0,
            "last_used_at": 0,
            "language": "python",
            "limits": LIMITS,
            "snapshot_version": 1,
        },
    ),
    (run.Span(), {"line": 1, "column": 1, "end_line": None, "end_column": None}),
    (
        run.ErrorObject(code="C", message="m"),
        {"code": "C", "message": "m", "hint": None, "span": None},
    ),
    (
        run.Diagnostic(code="C", message="m"),
        {"severity": "info", "code": "C", "message": "m", "hint": None, "span": None},
    ),
    (
        run.ExternalCallRecord(name="n", request_digest="d"),
        {
            "name": "n",
            "side_effect": "none",
            "duration_ms": 0,
            "status": "ok",
            "request_digest": "d",
            "response_digest": None,
            "error": None,
        },
    ),
    (run.Metrics(), METRICS),
    (
        run.RunRequest(),
        {
            "session_id": "default",
            "language": "python",
            "code": "",
            "inputs": {},
            "timeout_ms": None,
            "limits": None,
            "return_snapshot": False,
            "validate_only": False,
        },
    ),
    (
        run.RunResult(),
        {
            "status": "ok",
            "result": None,
            "stdout": "",
            "stderr": "",
            "diagnostics": [],
            "external_calls": [],
            "snapshot_id": None,
            "metrics": METRICS,
            "error": None,
        },
    ),
]


@pytest.mark.parametrize(("value", "seed"), SEED, ids=lambda value: type(value).__name__)
def test_every_field_is_written_with_the_seeds_default(value: msgspec.Struct, seed: dict[str, Any]):
    text = msgspec.json.encode(value)
    assert list(json.loads(text).items()) == list(seed.items())
    assert msgspec.json.decode(text, type=type(value)) == value


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (run.Language, "python typescript"),
        (run.SideEffect, "none read write network database external_system"),
        (run.Severity, "error warning info"),
        (run.CallStatus, "ok error timeout denied approval_pending"),
        (
            run.RunStatus,
            "ok validation_error runtime_error timeout cancelled resource_exhausted "
            "permission_denied waiting_for_approval interrupted",
        ),
    ],
)
def test_the_words_of_the_seed_are_the_words_of_the_wire(kind: Any, words: str):
    assert [member.value for member in kind] == words.split()


def test_a_diagnostic_of_an_error_has_its_code_and_message():
    error = run.ErrorObject(code="C", message="m", hint="h", span=run.Span(line=3))
    assert run.Diagnostic.error(error) == run.Diagnostic(
        severity=run.Severity.ERROR, code="C", message="m", hint="h", span=run.Span(line=3)
    )
