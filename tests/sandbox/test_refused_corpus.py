"""Programs that need what the sandbox lacks are refused before they act, with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from rookery.actors.sandbox import ProgramCall, Sandbox
from rookery.actors.sandbox.contract import ToolResult
from rookery.schemas.run import Language
from tests.sandbox.corpus_runner import programs
from tests.sandbox.session_fixture import Stage

PROGRAMS = programs(Path(__file__).with_name("refused_corpus"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_refused_before_it_acts(sandbox: Sandbox, ts_sandbox: Sandbox, name: str):
    language = Language.TYPESCRIPT if name.startswith("typescript") else Language.PYTHON
    where = ts_sandbox if language is Language.TYPESCRIPT else sandbox
    stage = Stage(where, f"r{abs(hash(name))}", language=language)
    calls: list[ProgramCall] = []

    def answer(call: ProgramCall) -> ToolResult:
        calls.append(call)
        return ToolResult(1)

    outcome = stage.run(PROGRAMS[name][0], answer=answer)
    stage.end()
    assert outcome.error is not None
    assert (outcome.error.code, calls) == ("UNSUPPORTED_FEATURE", [])
    assert outcome.error.span is not None
    assert outcome.error.hint
