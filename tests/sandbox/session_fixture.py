"""A session with tools, for tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rookery.actors.sandbox import (
    CallTool,
    Outcome,
    ProgramCall,
    Sandbox,
    SuspendedRun,
    Tool,
    ToolResult,
    answering,
)
from rookery.actors.sandbox.contract import suspend
from rookery.schemas.run import (
    Language,
    RunRequest,
    RunResult,
    RunStatus,
    SessionLimits,
    SideEffect,
)
from tests.sandbox.modes import BEGINS_HERE, in_mode

KEY = b"the key of the tests"
NOW_MS = 1_700_000_000_000
TOOLS = (
    Tool(name="add"),
    Tool(name="write", side_effect=SideEffect.WRITE, schema_digest="w1"),
    Tool(name="fetch", awaited=True, side_effect=SideEffect.NETWORK, schema_digest="f1"),
    Tool(name="approve", awaited=True),
)
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": lambda a, b=0: a + b,
    "write": lambda path, text="": {"path": path, "bytes": len(text)},
    "fetch": lambda n: n * 2,
}
ANSWERS = answering(FUNCTIONS)


def later(*names: str) -> Callable[[ProgramCall], ToolResult | None]:
    """A ``CallTool`` that suspends at calls of these names."""
    return lambda call: None if call.name in names else ANSWERS(call)


class Stage:
    def __init__(
        self,
        sandbox: Sandbox,
        name: str,
        *,
        tools: Iterable[Tool] = TOOLS,
        seed: bytes = b"seed",
        create: bool = True,
        language: Language = Language.PYTHON,
    ) -> None:
        self.sandbox, self.name, self.language = sandbox, name, language
        if create:
            sandbox.create(name, seed=seed, now_ms=NOW_MS, tools=tools, language=language)

    def try_run(
        self,
        code: str,
        answer: CallTool = ANSWERS,
        now_ms: int = NOW_MS,
        **request: Any,
    ) -> Outcome:
        if limits := request.pop("limits", None):
            request["limits"] = SessionLimits(**limits)
        request.setdefault("language", self.language)
        run_request = RunRequest(session_id=self.name, code=code, **request)
        run = self.sandbox.submit(
            run_request, answer=in_mode(answer), now_ms=now_ms, here=BEGINS_HERE
        )
        return run.result()

    def run(self, code: str, **request: Any) -> RunResult:
        outcome = self.try_run(code, **request)
        assert isinstance(outcome, RunResult), outcome
        return outcome

    def value(self, code: str, **request: Any) -> Any:
        """The result of a run that must succeed."""
        outcome = self.run(code, **request)
        assert outcome.status is RunStatus.OK, outcome.error
        return outcome.result

    def code(self, source: str, **request: Any) -> str:
        """The code of a run that must fail, in agreement with its only error diagnostic."""
        outcome = self.run(source, **request)
        assert outcome.error is not None, outcome
        assert outcome.result is None
        (diagnostic,) = [d for d in outcome.diagnostics if d.severity == "error"]
        assert (diagnostic.code, diagnostic.span) == (outcome.error.code, outcome.error.span)
        return outcome.error.code

    def wait(
        self,
        code: str,
        answer: CallTool = ANSWERS,
        **request: Any,
    ) -> SuspendedRun:
        outcome = self.try_run(code, answer, **request)
        assert isinstance(outcome, SuspendedRun), outcome
        return outcome

    def resume(self, *values: Any, **more: Any) -> Outcome:
        """Results for calls 1, 2, ..."""
        answers = dict(enumerate((ToolResult(value) for value in values), 1))
        answer = in_mode(more.pop("answer", suspend))
        return self.sandbox.resume(self.name, more.pop("answers", answers), answer=answer, **more)

    def end(self) -> None:
        if self.name in {meta.id for meta in self.sandbox.sessions()}:
            self.sandbox.destroy(self.name)
