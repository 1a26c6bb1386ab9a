"""Static checks, before a run and by ``validate``."""

from __future__ import annotations

import msgspec
import pytest

from rookery.actors.sandbox import Sandbox, Tool
from rookery.schemas.run import Language, RunRequest
from tests.sandbox.session_fixture import NOW_MS, Stage

MODULES = (
    "subprocess socket urllib.request requests ctypes multiprocessing threading http.client ssl"
    " concurrent.futures bz2 tkinter numpy"
)
NAMES = "__class__ __bases__ __subclasses__ __mro__ __globals__ __builtins__ __import__"
BLOCKED = [
    *(f"import {name}" for name in MODULES.split()),
    *(f"import {name}.x as y" for name in MODULES.split()),
    *(f"from {name} import x" for name in MODULES.split()),
    *(f"().{name}" for name in NAMES.split()),
    *(f"{name}" for name in NAMES.split()),
    *(f"open({path!r})" for path in ("/etc/passwd", "../x", "/workshop", "a/../../b", "/tmpx/y")),
    "__import__('subprocess')",
    "from concurrent import futures",
    "from urllib import request",
    "import no_such_module",
    "os.system('ls')",
    *(f"from json import {name} as x" for name in NAMES.split()),
    *(f"match 1:\n    case int({name}=x): pass" for name in NAMES.split()),
    "from . import x",
    "from .x import y",
    "from .. import x",
    "import json, socket",
    "def f():\n    import socket",
    "async def f():\n    async with open('/x') as y: pass",
    "[y for x in z if (y := x.__class__)]",
    "f'{open(chr(47)), open('/x')}'",
    "lambda x=().__class__: x",
    "@open('/x')\ndef f(): pass",
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
        "'import socket; __class__; open(1)'",
        "# import socket",
        "try:\n    import numpy\nexcept ImportError:\n    numpy = None",
        "def send_email(to): return to\nsend_email('x')",
        "class A:\n    def f(self): return self.__class__.__name__\nA().f()",
        "().__class__.__name__",
        "class A: pass\n[A.__mro__, A.__bases__, A.__subclasses__(), A.__dict__, A.__doc__]",
        "import os.path, urllib.parse, concurrent\nfrom http import HTTPStatus",
        "__import__('json').dumps(1)",
        "exec('x = 1'); eval('x'); compile('x', '', 'eval')",
        "for n in 'ab': open(f'own_{n}.py', 'w').write('x = 1')\nimport own_a, own_b",
        "open('yaml.py', 'w').write('x = 1')\nimport yaml",
        "open('new.txt', 'w').close(); open('/work/new.txt'); open('./a/../new.txt')",
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
        ("x = 'é'; y = x.__class__\nimport socket", "__class__", (1, 14, 1, 25)),
        ("import json, ssl, sys", "'ssl'", (1, 14, 1, 17)),
        ("import json as é, http.client as o", "'http.client'", (1, 19, 1, 35)),
        ("from ssl import (\n    path,\n)\nopen('/')", "'ssl'", (1, 1, 3, 2)),
        ("from json import a, __builtins__ as b", "__builtins__", (1, 21, 1, 38)),
        ("().__class__.__bases__[0].__subclasses__()", "__class__", (1, 1, 1, 13)),
        ("open('/', x.__class__)", "open()", (1, 1, 1, 23)),
        ("open('/').__class__", "open()", (1, 1, 1, 10)),
        ("'é'.__class__(open('/'))", "__class__", (1, 1, 1, 14)),
        ("f(\n  open(\n    '/é'),\n  ().__mro__)", "open()", (2, 3, 3, 10)),
        ("match x:\n  case int(é=1, __mro__=m): pass", "__mro__", (2, 8, 2, 27)),
        ("x = 1\réé = 2; import ssl", "'ssl'", (2, 16, 2, 19)),
        ("x = 1\r\né.__mro__", "__mro__", (2, 1, 2, 10)),
        ("x = '\u2028é'; import ssl", "'ssl'", (1, 18, 1, 21)),
        ('x = """\né"""; 𠀀𠀀.__class__', "__class__", (2, 7, 2, 19)),
        ("a = 1 \\\n  ; import ssl", "'ssl'", (2, 12, 2, 15)),
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
        ("import requests", "fetch()"),
        ("import socket", "list_tools()"),
        ("import threading", "asyncio"),
        ("import subprocess", "no process"),
        ("import os\nos.system('ls')", "no process"),
        ("import bz2", "zlib"),
        ("import pandas", "csv"),
        ("import no_such_module", "standard library"),
        ("open('/etc/passwd')", "relative path"),
        ("from .a import b", "full name"),
        ("().__class__", "type()"),
        ("send_email()", "list_tools()"),
        ("unheard_of()", "list_tools()"),
    ],
)
def test_every_refusal_has_a_hint(stage: Stage, source: str, hint: str):
    outcome = stage.run(source)
    assert outcome.error is not None
    assert outcome.error.hint is not None
    assert hint in outcome.error.hint
    assert [diagnostic.hint for diagnostic in outcome.diagnostics] == [outcome.error.hint]


@pytest.mark.parametrize(
    ("source", "tool", "named"),
    [
        ("import requests", "http_get", "http_get()"),
        ("import urllib.request", "fetch_text", "fetch_text()"),
        ("open('/etc/hosts')", "read_text", "read_text()"),
    ],
)
def test_a_refusal_names_the_offered_tool_that_does_it(
    sandbox: Sandbox, source: str, tool: str, named: str
):
    error = sandbox.validate(RunRequest(code=source), tools=[Tool(name=tool)]).error
    assert error is not None
    assert error.hint is not None
    assert named in error.hint


def test_what_earlier_runs_defined_is_no_tool_and_what_they_wrote_can_be_imported(stage: Stage):
    stage.run("def send_email(to): return to\nopen('own.py', 'w').write('x = 5')")
    assert stage.value("import own\n[send_email('me'), own.x]") == ["me", 5]


def test_what_the_host_offers_under_a_blocked_name_can_be_called(sandbox: Sandbox):
    request = RunRequest(code="open('/x')")
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


def test_validation_does_not_depend_on_earlier_validations(sandbox: Sandbox):
    """No program runs in an instance that checks, so all requests share it without effects."""
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
        session_id="absent", code="print(1)\nundefined + await later", inputs={"n": 1}
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


def test_a_language_without_a_guest_is_refused(sandbox: Sandbox, stage: Stage):
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
