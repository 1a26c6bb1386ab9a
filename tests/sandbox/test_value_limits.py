"""The host counts how deep and how large the values are that a guest returns.

The guests check this, too, but a program can evade them: ``toJSON`` makes a value deep where it is
encoded, after the check.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from rookery.actors.sandbox import ProgramCall, ToolResult
from rookery.actors.sandbox.contract import StepEnded
from rookery.actors.sandbox.python.python_guest import read_step
from rookery.actors.sandbox.runtime import guest_values
from rookery.actors.sandbox.runtime.wasm import GuestStopped
from rookery.actors.sandbox.typescript.guest import read_reply, to_step
from rookery.schemas.codec import nested_too_deeply
from tests.sandbox.session_fixture import Stage

LEVELS = 128
NEST = {
    "stage": "x = 1\nfor _ in range({levels}): x = [x]\n",
    "ts": "let x: any = 1; for (let i = 0; i < {levels}; i++) x = [x];\n",
}
HIDDEN = (
    "let y: any = 1; for (let i = 0; i < {levels}; i++) y = [y];\n"
    "const x: any = {{}};\n"
    "Object.defineProperty(x, 'toJSON', {{ value: () => y, enumerable: false }});\n"
)
USES = {
    "result = x": "RESULT_NOT_SERIALIZABLE",
    "x": "RESULT_NOT_SERIALIZABLE",
    "add(x)": "TOOL_ERROR",
    "await fetch(x)": "INVALID_ARGUMENT",
}
READERS: dict[str, Callable[[bytes], Any]] = {
    "Python": read_step,
    "TypeScript": lambda reply: to_step(read_reply(reply.decode()), None, ""),
}


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.starts_something
@pytest.mark.parametrize("language", NEST)
@pytest.mark.parametrize("use", USES)
def test_a_value_of_128_levels_passes(request: pytest.FixtureRequest, language: str, use: str):
    """The guests count the list of arguments as a level."""
    stage: Stage = request.getfixturevalue(language)
    levels = LEVELS - ("(" in use)
    given: list[Any] = []

    def answer(call: ProgramCall) -> ToolResult:
        given.extend(call.args)
        return ToolResult(1)

    found = stage.value(NEST[language].format(levels=levels) + use, answer=answer)
    assert (given or [found]) == [nested(levels)]


@pytest.mark.parametrize("levels", [LEVELS + 1, 980])
@pytest.mark.parametrize("use", USES)
def test_a_deeper_value_ends_its_run_and_not_its_session(ts: Stage, use: str, levels: int):
    ts.run("let before = 7")
    assert ts.code(HIDDEN.format(levels=levels) + use) == USES[use]
    assert ts.value("before") == 7


def test_a_program_can_catch_the_refusal_of_its_arguments(ts: Stage):
    code = HIDDEN.format(levels=980) + "let m = ''; try { add(x) } catch (e: any) { m = e.code }; m"
    assert ts.value(code) == "INVALID_ARGUMENT"


def test_a_deep_array_that_only_its_prototype_makes_is_refused(ts: Stage):
    code = (
        "let y: any = 1; for (let i = 0; i < 500; i++) y = { y };\n(Array as any).prototype.toJSON"
    )
    assert ts.code(code + " = () => y; result = [1]") == "RESULT_NOT_SERIALIZABLE"


def deep_value(levels: int) -> bytes:
    return b'{"value":' + b"[" * levels + b"]" * levels + b"}"


@pytest.mark.parametrize("language", READERS)
def test_a_forged_value_of_more_levels_is_an_error_of_the_run(language: str):
    assert READERS[language](deep_value(LEVELS)).error is None
    step = READERS[language](deep_value(LEVELS + 1))
    assert step.error.code == "RESULT_NOT_SERIALIZABLE"


@pytest.mark.parametrize("levels", [980, 10_000, 1_000_000])
def test_a_value_that_no_decoder_reads_is_an_error_of_the_run_or_stops_a_forging_guest(levels: int):
    step = READERS["TypeScript"](deep_value(levels))
    assert step.error.code == "RESULT_NOT_SERIALIZABLE"
    with pytest.raises(GuestStopped):
        READERS["Python"](deep_value(levels))


@pytest.mark.parametrize("language", READERS)
@pytest.mark.parametrize("reply", [b'{"waits":' + b"[" * 999 + b"]" * 999 + b"}", b"[" * 99_999])
def test_a_forged_deep_reply_of_another_form_stops_the_guest(language: str, reply: bytes):
    with pytest.raises(GuestStopped):
        READERS[language](reply)


@pytest.mark.parametrize("language", READERS)
def test_a_value_larger_than_a_blob_is_refused(language: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(guest_values, "BLOB_BYTES_MAX", 1_000)
    for size, code in ((998, None), (999, "RESULT_NOT_SERIALIZABLE")):
        step = READERS[language](msgspec.json.encode({"value": "x" * size}))
        assert isinstance(step, StepEnded)
        assert (step.error.code if step.error else None) == code


@pytest.mark.parametrize("language", READERS)
def test_the_texts_of_a_forged_error_are_cut(language: str):
    error = {"code": "NONE", "message": "m" * 9_999_999, "hint": "h" * 9_999_999}
    span = {"line": 1 << 80, "column": 1}
    step = READERS[language](msgspec.json.encode({"error": error | {"span": span}}))
    assert isinstance(step, StepEnded)
    assert step.error is not None
    assert (step.error.code, step.error.span) == ("RUNTIME_ERROR", None)
    assert len(step.error.message) == len(step.error.hint or "") == guest_values.TEXT_CHARS_MAX


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        (b"[]" * 500, 1),
        (b'{"a":[{"b":[]},{}],"c":{}}', 4),
        (b'["' + b"[" * 500 + b'"]', 1),
        (b'["\\"[[[[", {"\\\\": [1]}]', 3),
        (b"[[[[ not closed", 4),
        (b"]]]] not opened" + b"[]" * 200, 1),
    ],
)
def test_the_levels_of_a_text_are_counted(text: bytes, levels: int):
    assert not nested_too_deeply(text, levels)
    assert levels == 1 or nested_too_deeply(text, levels - 1)
