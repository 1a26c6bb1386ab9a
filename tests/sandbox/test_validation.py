"""Static checks: before anything runs, and on their own."""

from __future__ import annotations

import msgspec
import pytest

from rookery.actors.sandbox import Sandbox, Tool
from rookery.schemas.run import Language, RunRequest
from tests.sandbox.stage import NOW_MS, Stage

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
    *(f"from json import {name} as x" for name in NAMES.split()),
    *(f"match 1:\n    case int({name}=x): pass" for name in NAMES.split()),
    "from . import x",
    "from .x import y",
    "from .. import x",
    "import json, os",
    "def f():\n    import os",
    "async def f():\n    async with open('x') as y: pass",
    "[y for x in z if (y := x.__class__)]",
    "f'{open(1)}'",
    "lambda x=eval('1'): x",
    "@open('x')\ndef f(): pass",
    "class A(metaclass=B.__class__): pass",
    "x: ().__class__",
    "del x.__class__",
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


@pytest.mark.parametrize(
    ("source", "named", "span"),
    [
        ("x = 'é'; y = x.__class__\nimport os", "__class__", (1, 14, 1, 25)),
        ("import json, os, sys", "'os'", (1, 14, 1, 16)),
        ("import json as é, os.path as o", "'os'", (1, 19, 1, 31)),
        ("from os import (\n    path,\n)\nopen(1)", "'os'", (1, 1, 3, 2)),
        ("from json import a, __builtins__ as b", "__builtins__", (1, 21, 1, 38)),
        ("().__class__.__bases__[0].__subclasses__()", "__class__", (1, 1, 1, 13)),
        ("open(x.__class__)", "open()", (1, 1, 1, 18)),
        ("open(1).__class__", "open()", (1, 1, 1, 8)),
        ("'é'.__class__(open(1))", "__class__", (1, 1, 1, 14)),
        ("f(\n  open(\n    'é'),\n  eval)", "open()", (2, 3, 3, 9)),
        ("match x:\n  case int(é=1, __mro__=m): pass", "__mro__", (2, 8, 2, 27)),
        ("x = 1\réé = 2; import os", "'os'", (2, 16, 2, 18)),
        ("x = 1\r\né.__mro__", "__mro__", (2, 1, 2, 10)),
        ("x = '\u2028é'; import os", "'os'", (1, 18, 1, 20)),
        ('x = """\né"""; 𠀀𠀀.__class__', "__class__", (2, 7, 2, 19)),
        ("a = 1 \\\n  ; import os", "'os'", (2, 12, 2, 14)),
        ("f'é{x.__class__}'", "__class__", (1, 5, 1, 16)),
        ("é = await query_db('é')", "'query_db'", (1, 11, 1, 24)),
    ],
)
def test_the_first_violation_of_the_source_wins_with_its_exact_span(
    sandbox: Sandbox, source: str, named: str, span: tuple[int, int, int, int]
):
    error = sandbox.validate(RunRequest(code=source)).error
    assert error is not None
    assert named in error.message
    assert error.span is not None
    assert msgspec.structs.astuple(error.span) == span


@pytest.mark.parametrize(
    ("source", "span"),
    [
        ("é = 1; x = = 2", (1, 12, 1, 13)),
        ("é = 1\ré = 2; return", (2, 8, 2, 14)),
        ("x = 1\r\nif é:\nx", (3, 1, 3, 2)),
        ("x = 'é\n", (1, 5, 1, 5)),
        ("é\0", (1, 2, 1, 3)),
        ("a\r\nb\rc\né\0\0", (4, 2, 4, 3)),
        ("import os\nx = = 1", (2, 5, 2, 6)),
        ("𠀀 = 1; def", (1, 8, 1, 11)),
    ],
)
def test_what_is_no_program_is_a_syntax_error_at_its_exact_span(
    sandbox: Sandbox, source: str, span: tuple[int, int, int, int]
):
    outcome = sandbox.validate(RunRequest(code=source))
    assert outcome.error is not None
    assert (outcome.status, outcome.error.code) == ("validation_error", "SYNTAX_ERROR")
    assert outcome.error.span is not None
    assert msgspec.structs.astuple(outcome.error.span) == span


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ("import os", "list_tools()"),
        ("open('x')", "list_tools()"),
        ("eval('x')", "write the code itself"),
        ("__import__('x')", "the import statement"),
        ("from .a import b", "full name"),
        ("().__class__", "type()"),
        ("send_email()", "list_tools()"),
        ("unheard_of()", "list_tools()"),
    ],
)
def test_every_refusal_says_what_to_do_instead(stage: Stage, source: str, hint: str):
    outcome = stage.run(source)
    assert outcome.error is not None
    assert outcome.error.hint is not None
    assert hint in outcome.error.hint
    assert [diagnostic.hint for diagnostic in outcome.diagnostics] == [outcome.error.hint]


def test_what_the_host_offers_under_a_blocked_name_can_be_called(sandbox: Sandbox):
    request = RunRequest(code="open('x')")
    assert sandbox.validate(request).status == "validation_error"
    assert sandbox.validate(request, tools=[Tool(name="open")]).status == "ok"


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


def test_validation_comes_to_the_same_whatever_was_validated_before(sandbox: Sandbox):
    """Nothing runs in what checks, so one serves everybody - and must remember nobody."""
    warned = [sandbox.validate(RunRequest(code="1 is 1")).stderr for _ in range(3)]
    assert "SyntaxWarning" in warned[0]
    assert set(warned) == set(warned[:1])
    flood = sandbox.validate(RunRequest(code="1 is 1\n" * 2000))
    assert [d.code for d in flood.diagnostics] == ["STDOUT_EXCEEDED"]
    assert sandbox.validate(RunRequest(code="1 is 1")).stderr == warned[0]
    assert sandbox.validate(RunRequest(code="x = 'é'")).stderr == ""


def test_validation_executes_nothing_and_needs_no_session(sandbox: Sandbox, stage: Stage):
    sessions = sandbox.sessions()
    fine = RunRequest(
        session_id="nobody", code="print(1)\nundefined + await later", inputs={"n": 1}
    )
    outcome = sandbox.validate(fine)
    assert (outcome.status, outcome.result, outcome.stdout) == ("ok", None, "")
    broken = sandbox.validate(RunRequest(code="1 +"))
    assert broken.error is not None
    assert (broken.status, broken.error.code) == ("validation_error", "SYNTAX_ERROR")
    assert sandbox.sessions() == sessions


def test_validation_in_a_session_changes_nothing_in_it(sandbox: Sandbox, stage: Stage):
    stage.run("x = 1")
    before = sandbox.snapshot(stage.name), sandbox.sessions()
    known = stage.run("x = n\nlist_tools()", validate_only=True, inputs={"n": 2}, now_ms=NOW_MS + 9)
    assert (known.status, known.result, known.external_calls) == ("ok", None, ())
    assert stage.code("x = 2; 1 +", validate_only=True, return_snapshot=True) == "SYNTAX_ERROR"
    assert (sandbox.snapshot(stage.name), sandbox.sessions()) == before
    assert stage.value("[x, 'n' in dir()]") == [1, False]


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
