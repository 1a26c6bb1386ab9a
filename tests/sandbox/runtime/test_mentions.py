"""A guest has the names of a realm's tools that its session's programs mention, and no other."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
import wasmtime

from rookery.actors.sandbox import Sandbox, Tool
from rookery.actors.sandbox.contract import suspend
from rookery.actors.sandbox.python.python_guest import PythonGuest
from rookery.actors.sandbox.runtime.introspection import INTROSPECTION, callable_names
from rookery.actors.sandbox.runtime.mentions import WORDS_MAX, Mentions, names_for, restored, stored
from rookery.actors.sandbox.sessions.run_log import RunLog
from rookery.actors.sandbox.sessions.snapshot import open_snapshot
from rookery.actors.sandbox.typescript.guest import JavaScriptGuest
from rookery.actors.sandbox.validate import tools_by_name
from rookery.schemas.run import Language, RunRequest, SessionLimits
from tests.sandbox.programs import without_time
from tests.sandbox.recorder import Recorder
from tests.sandbox.session_fixture import KEY, TOOLS, Stage

PYTHON, TYPESCRIPT = Language.PYTHON, Language.TYPESCRIPT
MANY = tuple(
    Tool(name=f"s{n}_fetch", awaited=True, of_surface=True, by_mention=True) for n in range(300)
)
SYNCHRONOUS = Tool(name="s_add", of_surface=True, by_mention=True)
OFFERED = (*TOOLS, SYNCHRONOUS, *MANY)
BY_NAME = {tool.name: tool for tool in OFFERED}
ALWAYS = ("add", "fetch", "list_tools", "search_tools")


def names_after(*sources: str, language: Language = PYTHON) -> set[str]:
    """The names of surfaces that the guest has for the last of these programs."""
    mentions = Mentions()
    for source in sources:
        mentions = mentions.after(source, language)
    found = names_for(BY_NAME, mentions)
    assert set(ALWAYS) <= found.keys(), "the node's own tools need no mention"
    return {name for name in found if BY_NAME.get(name, TOOLS[0]).by_mention is True}


@pytest.mark.parametrize("language", [PYTHON, TYPESCRIPT])
def test_a_name_is_bound_from_its_first_mention_on(language: Language):
    assert names_after("1 + 1", language=language) == set()
    assert names_after("await s7_fetch(1)", language=language) == {"s7_fetch"}
    assert names_after("x = 's7_fetch'", "1 + 1", language=language) == {"s7_fetch"}
    assert names_after("as7_fetch(s7_fetchx)", language=language) == set(), "a part is no mention"


@pytest.mark.parametrize(
    ("language", "source"),
    [
        (PYTHON, "eval(search_tools('x')[0]['name'])"),
        (PYTHON, "exec(code)"),
        (PYTHON, "__builtins__[name]"),
        (PYTHON, "f.__builtins__"),
        (PYTHON, "sys._getframe().f_builtins"),
        (PYTHON, "globals()"),
        (TYPESCRIPT, "this[name]()"),
        (TYPESCRIPT, "(0, eval)(name)"),
        (TYPESCRIPT, "new Function('return ' + name)"),
        (TYPESCRIPT, "(() => 0).constructor('return ' + name)"),
        (TYPESCRIPT, "(() => 0)['constructor']"),
        (TYPESCRIPT, "function f() { return this[name] }"),
        (TYPESCRIPT, "const g = this"),
        (TYPESCRIPT, "s7\\u005ffetch()"),
    ],
)
def test_a_source_that_can_compute_names_gets_all_from_then_on(language: Language, source: str):
    every = {tool.name for tool in OFFERED if tool.by_mention is True}
    assert names_after(source, language=language) == every
    assert names_after(source, "1 + 1", language=language) == every


@pytest.mark.parametrize(
    ("language", "source"),
    [
        (PYTHON, "evaluate(x)"),
        (PYTHON, "re.compiler"),
        (TYPESCRIPT, "class A { constructor() { this.x = 1; } get() { return this.x; } }"),
        (TYPESCRIPT, "functional(this?.x)"),
    ],
)
def test_usual_programs_compute_no_names(language: Language, source: str):
    assert names_after(source, language=language) == set()


def test_python_reads_letters_of_another_form_as_the_usual_ones():
    assert names_after("\uff537_fetch(1)") == {"s7_fetch"}


def test_a_session_with_very_many_words_gets_all_names():
    words = " ".join(f"w{n}" for n in range(WORDS_MAX + 1))
    assert Mentions().after(words, PYTHON).everything


def test_mentions_are_stored_in_one_order():
    mentions = Mentions().after("b a c", PYTHON)
    assert stored(mentions) == ("a", "b", "c")
    for one in (None, mentions, Mentions().after("eval", PYTHON)):
        assert restored(stored(one)) == one


def test_runs_of_before_have_the_names_that_they_had():
    """In the same order, on which the fuel of a run depends."""
    earlier = {n: msgspec.structs.replace(t, by_mention=msgspec.UNSET) for n, t in BY_NAME.items()}
    assert list(names_for(earlier, Mentions()).items()) == list(callable_names(earlier).items())


# --- in the sandbox -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def other(
    engine: wasmtime.Engine, guest: PythonGuest, javascript_guest: JavaScriptGuest
) -> Iterator[Sandbox]:
    """The sandbox in which sessions are rebuilt."""
    with Sandbox(engine, [guest, javascript_guest], KEY) as sandbox:
        yield sandbox


def test_functions_of_earlier_runs_call_their_tools(sandbox: Sandbox):
    stage = Stage(sandbox, "mentions", tools=OFFERED)
    stage.value("async def later(n): return await s7_fetch(n)\ndef named(name): return s_add")
    assert stage.wait("await later(4)", suspend).calls[0].name == "s7_fetch"
    assert stage.resume(8).result == 8
    assert stage.run("s8_fetch_(1)").error.code == "UNKNOWN_TOOL"
    found = stage.wait("await eval(search_tools('s123 fetch')[0]['name'])(1)", suspend)
    assert [call.name for call in found.calls] == ["s123_fetch"]
    assert stage.resume(9).result == 9
    stage.end()


def test_a_typescript_program_calls_what_it_finds(ts_sandbox: Sandbox):
    stage = Stage(ts_sandbox, "mentions", tools=OFFERED, language=TYPESCRIPT)
    assert stage.value("typeof s7_fetch") == "function"
    assert stage.wait("const f = () => s7_fetch(2); await f()", suspend).calls[0].name == "s7_fetch"
    assert stage.resume(4).result == 4
    found = "const found = search_tools('s123 fetch')[0].name; await this[found](1)"
    assert stage.wait(found, suspend).calls[0].name == "s123_fetch"
    assert stage.resume(9).result == 9
    stage.end()


def test_a_tool_that_comes_later_has_the_name_that_a_function_uses(sandbox: Sandbox):
    stage = Stage(sandbox, "comes", tools=(*TOOLS, SYNCHRONOUS))
    stage.value("async def f(): return await s7_fetch(3)")
    still = RunRequest(session_id="comes", code="x = 1")
    stage.sandbox.submit(still, now_ms=0, tools=OFFERED).result()
    assert stage.wait("await f()", suspend).calls[0].name == "s7_fetch"
    stage.end()


PROGRAMS = (
    "def f(n): return s_add(n, n)\nf(1)",
    "[f(2), len(list_tools())]",
    "x = 1",
    "eval('s_add')(1, 2)",
    "[f(4), s_add(5, 5)]",
)


def test_a_rebuilt_session_has_the_same_names_and_bytes(sandbox: Sandbox, other: Sandbox):
    """From its runs, and from a snapshot at any place."""
    live = Recorder(sandbox, "same", tools=OFFERED).create()
    again = Recorder(other, "same", tools=OFFERED)
    bases = []
    for code in PROGRAMS[:-1]:
        assert live.run(code).error is None
        bases.append(live.sandbox.snapshot(live.name).data)
    last, state = live.run(PROGRAMS[-1]), live.state()
    runs = live.runs[: len(bases)]
    again.reopen(runs)
    assert without_time(again.run(PROGRAMS[-1])) == without_time(last)
    assert again.state() == state
    for done, base in enumerate(bases, 1):
        again.reopen(runs[done:], base, after=done)
        assert without_time(again.run(PROGRAMS[-1])) == without_time(last)
        assert again.state() == state
    live.end()
    again.end()


def test_the_log_of_an_ended_run_has_only_the_tools_that_it_could_call():
    request = RunRequest(session_id="x", code="await s7_fetch(1); search_tools('x')")
    mentions = Mentions().after(request.code, PYTHON)
    log = RunLog.of(request, SessionLimits(), tools_by_name(OFFERED), 0, mentions)
    ended = log.ended()
    assert set(ended.tools) == {*(tool.name for tool in TOOLS), "s7_fetch"}
    assert log.has_search
    assert ended.has_search


def test_a_snapshot_of_a_waiting_run_has_only_the_tools_that_it_could_call(sandbox: Sandbox):
    """It gets the others again when it is restored."""
    stage = Stage(sandbox, "waits", tools=OFFERED)
    assert stage.wait("[await s7_fetch(1), len(list_tools())]", suspend).calls
    data = sandbox.snapshot("waits").data
    header, saved = open_snapshot(KEY, data, lambda *_: None, None)
    assert saved.turn is not None
    of_surfaces = {tool.name for tool in OFFERED if tool.of_surface}
    assert of_surfaces & header.tools.keys() == {"s7_fetch"}
    assert of_surfaces & saved.turn.log.tools.keys() == {"s7_fetch"}
    sandbox.restore(data, tools=OFFERED)
    described = len(OFFERED) + len(INTROSPECTION) + 1
    assert stage.resume(8).result == [8, described]
    stage.end()
