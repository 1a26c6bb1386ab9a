"""The results of Python runs: values, and errors with a code and an exact span."""

from __future__ import annotations

from typing import Any

import pytest

from rookery.schemas.run import RunStatus, Severity, Span
from tests.sandbox.session_fixture import Stage


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("1 + 1", 2),
        ("", None),
        ("x = 5", None),
        ("x = 5\nx * 2", 10),
        ("result = 'kept'\n7", "kept"),
        ("result = None\n7", None),
        ("for i in range(3): pass", None),
        ("def f():\n    global result\n    result = 3\nf()", 3),
        ("{'a': [1, 2.5, True, None, 'é']}", {"a": [1, 2.5, True, None, "é"]}),
        ("2 ** 200", 2**200),
        ("import asyncio\nawait asyncio.sleep(3600, 'slept')", "slept"),
        ("async def f(): return 4\nawait f()", 4),
        ("async def f(): return 4\nresult = await f()", 4),
        ("[x async for x in (i async for i in aiter_of(3))]", [0, 1, 2]),
        ("import collections\ncollections.Counter('aab')", {"a": 2, "b": 1}),
    ],
)
def test_the_result_is_result_or_else_the_last_expression(stage: Stage, code: str, value: Any):
    stage.run("async def aiter_of(n):\n    for i in range(n): yield i")
    assert stage.value(code) == value


def test_a_result_of_an_earlier_run_can_be_read_but_never_leaks(stage: Stage):
    assert stage.value("result = 1") == 1
    assert stage.value("x = 2") is None
    assert stage.value("result") == 1
    assert stage.value("result += 1") == 2
    assert stage.value("if False: result = 9") is None


@pytest.mark.parametrize(
    ("code", "named"),
    [
        ("{1}", "type set"),
        ("b'x'", "type bytes"),
        ("print", "type builtin_function_or_method"),
        ("float('nan')", "float nan"),
        ("[1, {'a': [2, object()]}]", "type object at [1]['a'][1]"),
        ("{1: 2}", "key of type int"),
        ("'\\ud800'", "lone surrogates"),
        ("a", "contains itself"),
        ("9 ** 9999", "integer of more than 14000 bits"),
    ],
)
def test_an_assigned_result_that_is_not_json_is_refused_by_its_type(
    stage: Stage, code: str, named: str
):
    stage.run("a = []\na.append(a)")
    outcome = stage.run(f"result = {code}")
    assert outcome.status is RunStatus.VALIDATION_ERROR
    assert outcome.error is not None
    assert outcome.error.code == "RESULT_NOT_SERIALIZABLE"
    assert named in outcome.error.message
    assert outcome.error.hint


def test_a_last_expression_that_is_not_json_does_not_matter_beside_a_result(stage: Stage):
    assert stage.value("result = 1\n{2}") == 1


def test_inputs_are_data(stage: Stage):
    inputs = {"text": "'); import os #\0\u2028", "nested": {"b": 1, "a": [None, 1e300]}}
    assert stage.value("[text, list(nested), nested]", inputs=inputs) == [
        inputs["text"],
        ["b", "a"],
        inputs["nested"],
    ]
    assert stage.value("text", inputs={}) == inputs["text"]


@pytest.mark.parametrize(
    "inputs", [{"not an identifier": 1}, {"__builtins__": {}}, {"x": float("nan")}]
)
def test_inputs_that_cannot_be_bound_are_refused(stage: Stage, inputs: dict[str, Any]):
    outcome = stage.run("1", inputs=inputs)
    assert outcome.error is not None
    assert (outcome.status, outcome.error.code) == ("validation_error", "INVALID_ARGUMENT")


def test_a_recorded_request_that_is_refused_today_is_repeated(stage: Stage):
    """The name of an input is a keyword; older nodes accepted it."""
    assert stage.value("1", inputs={"class": 1}) == 1


@pytest.mark.parametrize(
    ("source", "code", "status", "span"),
    [
        ("x = = 1", "SYNTAX_ERROR", "validation_error", (1, 5, 1, 6)),
        ("'é' + (\n", "SYNTAX_ERROR", "validation_error", (1, 7, None, None)),
        ("é = 1; return 5", "SYNTAX_ERROR", "validation_error", (1, 8, 1, 16)),
        ("a\0b", "SYNTAX_ERROR", "validation_error", (1, 2, 1, 3)),
        ("1\n'éé' + 1/0", "RUNTIME_ERROR", "runtime_error", (2, 8, 2, 11)),
        ("def f():\n  return {}['é']\n\nf()", "RUNTIME_ERROR", "runtime_error", (2, 10, 2, 17)),
        ("nobody_knows(1)", "UNKNOWN_TOOL", "validation_error", (1, 1, 1, 13)),
        ("import wave_", "UNSUPPORTED_FEATURE", "validation_error", (1, 8, 1, 13)),
        ("raise NotImplementedError", "UNSUPPORTED_FEATURE", "validation_error", (1, 1, 1, 26)),
        ("raise PermissionError('x')", "PERMISSION_DENIED", "permission_denied", (1, 1, 1, 27)),
        ("raise TimeoutError", "TIMEOUT_WALL", "timeout", (1, 1, 1, 19)),
        ("raise SystemExit(3)", "RUNTIME_ERROR", "runtime_error", (1, 1, 1, 20)),
        ("raise KeyboardInterrupt", "RUNTIME_ERROR", "runtime_error", (1, 1, 1, 24)),
        ("int('x')", "RUNTIME_ERROR", "runtime_error", (1, 1, 1, 9)),
        ("len(5)", "RUNTIME_ERROR", "runtime_error", (1, 1, 1, 7)),
        ("input()", "RUNTIME_ERROR", "runtime_error", (1, 1, 1, 8)),
        ("import asyncio\nasyncio.run(len)", "RUNTIME_ERROR", "runtime_error", (2, 1, 2, 17)),
    ],
)
def test_an_error_has_a_code_a_status_and_an_exact_span(
    stage: Stage, source: str, code: str, status: str, span: tuple[Any, ...]
):
    outcome = stage.run(source)
    assert outcome.error is not None
    assert (outcome.error.code, outcome.status) == (code, status)
    line, column, end_line, end_column = span
    expected = Span(line=line, column=column, end_line=end_line, end_column=end_column)
    assert outcome.error.span == expected


def test_a_span_points_into_the_present_source_and_no_other(stage: Stage):
    stage.run("\n\n\ndef early(): return 1/0")
    outcome = stage.run("x = 1; early()")
    assert outcome.error is not None
    assert outcome.error.span == Span(line=1, column=8, end_line=1, end_column=15)


def test_an_exception_whose_text_raises_is_still_described(stage: Stage):
    code = "class E(Exception):\n    def __str__(self): raise self\nraise E"
    outcome = stage.run(code)
    assert outcome.error is not None
    assert (outcome.error.code, outcome.error.message) == ("RUNTIME_ERROR", "E")


def test_an_uncaught_exception_preserves_the_effects_of_the_run(stage: Stage):
    assert stage.code("x = 1\n1/0") == "RUNTIME_ERROR"
    assert stage.value("x") == 1


def test_awaiting_a_future_that_cannot_end_is_an_error(stage: Stage):
    assert stage.code("import asyncio\nawait asyncio.Future()") == "RUNTIME_ERROR"
    assert stage.value("1") == 1


def test_output_is_captured_stream_by_stream_and_stays_with_its_run(stage: Stage):
    code = "import logging\nprint('a', end='')\nprint('é\\ud800')\nlogging.error('w')\nprint('e')"
    outcome = stage.run(code)
    assert (outcome.stdout, outcome.stderr) == ("aé\\ud800\ne\n", "ERROR:root:w\n")
    assert stage.run("print('b', end='')").stdout == "b"
    assert stage.run("1").stdout == ""


def test_output_before_an_error_is_returned(stage: Stage):
    assert stage.run("print('so far')\n1/0").stdout == "so far\n"


@pytest.mark.parametrize(("limit", "kept"), [(0, ""), (5, "éé"), (6, "ééé"), (7, "ééé\n")])
def test_cut_output_ends_with_a_whole_character_and_a_warning(stage: Stage, limit: int, kept: str):
    outcome = stage.run("print('ééé')\nprint('é')", limits={"max_stdout_bytes": limit})
    assert (outcome.status, outcome.stdout) == ("ok", kept)
    (warning,) = outcome.diagnostics
    assert (warning.severity, warning.code) == (Severity.WARNING, "STDOUT_EXCEEDED")
    assert stage.run("print('ééé')").diagnostics == ()


def test_output_that_fits_exactly_is_not_cut(stage: Stage):
    assert stage.run("print('ééé')", limits={"max_stdout_bytes": 7}).diagnostics == ()
