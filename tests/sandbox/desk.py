"""Calls that wait at a desk until the test answers them, for tests of pending results."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import pytest

from rookery.actors.sandbox import CallTool, PendingResult, ProgramCall, ToolResult
from rookery.schemas.run import Language, RunRequest, SessionLimits
from tests.sandbox.session_fixture import NOW_MS, Stage

ADDING = {
    Language.PYTHON: "x = [add(n) for n in range(5)]\nprint(x)\nsum(x)",
    Language.TYPESCRIPT: "let x = [0, 1, 2, 3, 4].map(n => add(n)); console.log(x)\n"
    "x.reduce((a, b) => a + b)",
}
EVERY_LANGUAGE = pytest.mark.parametrize("language", list(Language))
PATIENCE_S = 90.0
LONG = SessionLimits(wall_ms=60_000)


class Desk:
    """Calls arrive here and wait until ``answer``."""

    def __init__(self) -> None:
        self.calls: list[tuple[ProgramCall, PendingResult]] = []
        self._arrived = threading.Semaphore(0)

    def __call__(self, call: ProgramCall) -> PendingResult:
        result: PendingResult = Future()
        self.calls.append((call, result))
        self._arrived.release()
        return result

    def next(self) -> tuple[ProgramCall, PendingResult]:
        assert self._arrived.acquire(timeout=PATIENCE_S)
        return self.calls.pop(0)

    def answer(self, count: int, value: Any = 1) -> None:
        for _ in range(count):
            self.next()[1].set_result(ToolResult(value))


def submitted(
    stage: Stage, answer: CallTool, code: str = "", *, here: bool = False, **request: Any
) -> Future[Any]:
    code = code or ADDING[stage.language]
    run = RunRequest(session_id=stage.name, code=code, language=stage.language, **request)
    return stage.sandbox.submit(run, answer=answer, now_ms=NOW_MS, here=here)
