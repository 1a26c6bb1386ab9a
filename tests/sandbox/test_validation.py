"""Static checks: before anything runs, and on their own."""

from __future__ import annotations

import pytest

from rookery.actors.sandbox import Sandbox, Tool
from rookery.schemas.run import Language, RunRequest, Span
from tests.sandbox.stage import Stage

MODULES = (
    "os subprocess socket urllib requests ctypes sys shutil pathlib io multiprocessing"
    " threading http"
)
NAMES = "__class__ __bases__ __subclasses__ __mro__ __globals__ __builtins__ __import__"
BLOCKED = [
    *(f"import {name}" for name in MODULES.split()),
    *(f"import {name}.x as y" for name in MODULES.split()),
    *(f"from {name} import x" for name in MODULES.split()),
    *(f"().{name}" for name in NAMES.split()),
    *(f"{name}" for name in NAMES.split()),
    *(f"{name}('x')" for name in ("open", "exec", "eval", "compile", "__import__")),
    "from . import x",
    "from .x import y",
    "def f():\n    import os",
]


@pytest.mark.parametrize("source", BLOCKED)
def test_what_is_blocked_is_refused_before_anything_runs(stage: Stage, source: str):
    outcome = stage.run(f"print('ran')\n{source}")
    assert outcome.error is not None
    assert (outcome.status, outcome.error.code) == ("validation_error", "UNSUPPORTED_FEATURE")
    assert outcome.stdout == ""
    assert outcome.error.hint
    assert outcome.error.span is not None
    assert outcome.error.span.line >= 2


@pytest.mark.parametrize(
    "source",
    [
        "'import os; __class__; eval(1)'",
        "# import os",
        "import re\nre.compile('a').pattern",
        "class Reader:\n    def open(self): return 1\nReader().open()",
        "import asyncio.events\nfrom collections import abc\n1",
    ],
)
def test_what_only_looks_like_it_is_not(stage: Stage, source: str):
    assert stage.run(source).status == "ok"


def test_the_first_violation_of_the_source_wins_with_its_exact_span(stage: Stage):
    outcome = stage.run("x = 'é'; y = x.__class__\nimport os")
    assert outcome.error is not None
    assert "__class__" in outcome.error.message
    assert outcome.error.span == Span(line=1, column=14, end_line=1, end_column=25)


@pytest.mark.parametrize("name", ["fetch_url", "query_db", "send_email"])
def test_a_call_that_looks_like_a_tool_is_one_or_is_refused(
    sandbox: Sandbox, stage: Stage, name: str
):
    request = RunRequest(session_id=stage.name, code=f"{name}('x')")
    refused = sandbox.validate(request)
    assert refused.error is not None
    assert (refused.status, refused.error.code) == ("validation_error", "UNKNOWN_TOOL")
    assert refused.error.hint
    assert sandbox.validate(request, tools=[Tool(name=name)]).status == "ok"


def test_validation_executes_nothing_and_needs_no_session(sandbox: Sandbox, stage: Stage):
    fine = RunRequest(
        session_id="nobody", code="print(1)\nundefined + await later", inputs={"n": 1}
    )
    outcome = sandbox.validate(fine)
    assert (outcome.status, outcome.result, outcome.stdout) == ("ok", None, "")
    broken = sandbox.validate(RunRequest(code="1 +"))
    assert broken.error is not None
    assert (broken.status, broken.error.code) == ("validation_error", "SYNTAX_ERROR")
    stage.run("x = 1")
    before = sandbox.snapshot(stage.name)
    assert stage.run("x = 2", validate_only=True).status == "ok"
    assert sandbox.snapshot(stage.name) == before


@pytest.mark.parametrize(
    ("source", "status"),
    [
        ("(" * 500 + ")" * 500, "validation_error"),
        ("-" * 100_000 + "1", "validation_error"),
        ("x = " + "[" * 50 + "]" * 50, "ok"),
        ("x = '" + "a" * 1_000_000 + "'", "ok"),
        ("x = '" + "a" * 10_000_000 + "'", "resource_exhausted"),
        ("\ud800", "validation_error"),
    ],
)
def test_hostile_sources_are_contained(sandbox: Sandbox, source: str, status: str):
    assert sandbox.validate(RunRequest(code=source)).status == status
    assert sandbox.validate(RunRequest(code="1")).status == "ok"


def test_a_language_nobody_speaks_here_is_refused(sandbox: Sandbox, stage: Stage):
    for outcome in (
        stage.run("1", language=Language.TYPESCRIPT),
        sandbox.validate(RunRequest(code="1", language=Language.TYPESCRIPT)),
    ):
        assert outcome.error is not None
        assert (outcome.status, outcome.error.code) == ("validation_error", "UNSUPPORTED_FEATURE")


def test_limits_below_zero_and_bad_session_ids_are_refused(sandbox: Sandbox, stage: Stage):
    assert stage.code("1", limits={"cpu_ms": -1}) == "INVALID_ARGUMENT"
    refused = sandbox.validate(RunRequest(session_id="no/such", code="1"))
    assert refused.error is not None
    assert refused.error.code == "INVALID_SESSION_ID"
