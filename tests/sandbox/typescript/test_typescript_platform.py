"""The platform functions that programs use exist and agree with node."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rookery.actors.sandbox import Sandbox
from rookery.schemas.run import Language
from tests.sandbox.session_fixture import Stage

PROGRAMS = {
    path.stem: path for path in sorted(Path(__file__).with_name("printed_by_node").glob("*.js"))
}
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_prints_what_it_prints_in_node(ts: Stage, name: str):
    code = PROGRAMS[name].read_text()
    outcome = ts.run(code, limits={"cpu_ms": 20_000, "wall_ms": 20_000})
    assert outcome.error is None
    assert outcome.stdout == PROGRAMS[name].with_suffix(".txt").read_text()


def test_ids_are_chance_of_the_sessions_own(ts_sandbox: Sandbox):
    code = "[crypto.randomUUID(), ...crypto.getRandomValues(new Uint8Array(8))]"
    found = []
    for seed in (b"one", b"one", b"two"):
        stage = Stage(ts_sandbox, "ids", seed=seed, language=Language.TYPESCRIPT)
        found.append(stage.value(f"[{code}, {code}]"))
        stage.end()
    assert found[0] == found[1] != found[2]
    first, second = (drawn[0] for drawn in found[0])
    assert first != second
    assert UUID.fullmatch(first)
    assert UUID.fullmatch(second)


@pytest.mark.parametrize(
    ("code", "named"),
    [
        ("(5).toLocaleString('de-DE')", "the locale de-DE is not available"),
        ("new Intl.NumberFormat('fr')", "the locale fr is not available"),
        ("'a'.localeCompare('b', 'sv')", "the locale sv is not available"),
        ("new Date(0).toLocaleString('en', { timeZone: 'Asia/Tokyo' })", "time zone Asia/Tokyo"),
        ("(5).toLocaleString('en', { style: 'currency' })", "Currency code is required"),
        ("(5).toLocaleString('en', { minimumFractionDigits: 101 })", "out of range"),
    ],
)
def test_what_is_not_there_is_an_error_a_program_can_catch(ts: Stage, code: str, named: str):
    assert named in ts.value(
        f"let said = ''; try {{ {code} }} catch (e) {{ said = e.message }} said"
    )


def test_a_program_may_have_these_names_for_itself(ts: Stage):
    code = "class URL { x = 1 }\nconst crypto = 2, Intl = { a: 3 };"
    assert ts.value(f"{code}\n[new URL().x, crypto, Intl.a]") == [1, 2, 3]
    assert ts.value("[new URL().x, crypto]") == [1, 2]


def test_timers_of_console_say_how_long_it_took(ts: Stage):
    code = "console.time('t'); await new Promise(r => setTimeout(r, 1500)); console.timeEnd('t')"
    assert re.fullmatch(r"t: 1\.50\ds\n", ts.run(code).stdout)
    assert ts.run("console.timeEnd('t')").stdout == ""


def test_a_group_ends_with_its_run_and_an_assertion_prints_its_message(ts: Stage):
    assert ts.run("console.group('a'); console.log('b')").stdout == "a\n  b\n"
    outcome = ts.run("console.log('c'); console.assert(1 > 2, 'no', { a: 1 }); console.trace('t')")
    assert (outcome.stdout, outcome.stderr) == ("c\n", "Assertion failed: no { a: 1 }\nTrace: t\n")


def test_an_error_is_printed_with_what_it_carries(ts: Stage):
    outcome = ts.run("console.log(new TypeError('e'), [new Error('f')])")
    assert outcome.stdout == "TypeError: e [ [Error: f] ]\n"
    outcome = ts.run("console.error(Object.assign(new Error('g'), { code: 'X' }))")
    assert outcome.stderr == "Error: g { code: 'X' }\n"
