"""``CodeHistory``: the programs in which models act, as past runs of their session.

A program of ``run_code`` is repeated as any other: it counts as a run, by the id of its call, with
the environment of the run whose model wrote it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType

from rookery.actors.execution.step_inputs import CodeInputs, FactPosition
from rookery.schemas.agents import RUN_CODE
from rookery.schemas.calls import CODE_SURFACE, CallArguments, RunEnvironment
from rookery.schemas.envelope import Fact
from rookery.schemas.facts import code, tool, turn
from rookery.schemas.facts.run_progress import TurnEnd
from rookery.schemas.run import Metrics, RunRequest, RunResult

if TYPE_CHECKING:
    from rookery.actors.execution.history import PastRun

__all__ = ["CodeHistory", "code_of", "model_of", "program_request"]


class CodeHistory:
    """The programs of one run that a model drives, from its facts in order."""

    def __init__(
        self,
        model_run: PastRun,
        answered_at: Mapping[str, FactPosition],
        get_blob: Callable[[str], Awaitable[bytes]],
    ) -> None:
        self._model_run, self._answered_at, self._get_blob = model_run, answered_at, get_blob
        self._programs: dict[str, tuple[PastRun, CodeInputs]] = {}

    async def add(self, position: FactPosition, fact: Fact) -> tuple[PastRun, CodeInputs] | None:
        """Add the next fact; the program that is requested by it, if one is."""
        match fact:
            case tool.Requested(name=name, surface=surface) if (name, surface) == (
                RUN_CODE,
                CODE_SURFACE,
            ):
                return await self._request(position, fact)
            case code.Stepped() | code.Ended():
                run, inputs = self._programs[fact.operation_id]
                inputs.add_fact(position, fact)
                run.now_ms = fact.begun_at_ms
                run.steps, run.beside = inputs.steps, inputs.beside
                if isinstance(fact, code.Ended):
                    run.ended_at, run.kept = position, fact.kept
                    run.result = RunResult(metrics=Metrics(instructions=fact.instructions))
            case _ if isinstance(fact, TurnEnd):
                for run, _ in self._programs.values():
                    if run.ended_at is None:
                        run.ended_at = position
        return None

    async def _request(
        self, position: FactPosition, fact: tool.Requested
    ) -> tuple[PastRun, CodeInputs]:
        request = program_request(
            self._model_run.request,
            self._model_run.environment,
            await code_of(fact.arguments, fact.arguments_blob, self._get_blob),
        )
        run = dataclasses.replace(
            self._model_run,
            run_id=fact.operation_id,
            request=request,
            request_blob=UNSET,
            now_ms=fact.at_ms,
            started_at=position,
            batches=[],
            boundaries=[],
            waits=[],
            injected={},
        )
        self._programs[fact.operation_id] = found = run, CodeInputs(self._answered_at)
        return found


async def code_of(
    arguments: CallArguments | UnsetType,
    blob: str | UnsetType,
    get_blob: Callable[[str], Awaitable[bytes]],
) -> str:
    """The program of a call of ``run_code``."""
    if blob is not UNSET:
        arguments = msgspec.json.decode(await get_blob(blob), type=CallArguments)
    written: Any = "" if arguments is UNSET else arguments.kwargs.get("code", "")
    return written if isinstance(written, str) else ""


def program_request(request: RunRequest, environment: RunEnvironment, code: str) -> RunRequest:
    """The program as a request of its own, in the language of the session."""
    return RunRequest(session_id=request.session_id, language=environment.language, code=code)


def model_of(fact: turn.Started) -> RunEnvironment | None:
    """The environment of a run that a model drives."""
    offer = fact.offer
    if isinstance(offer, RunEnvironment) and offer.model is not UNSET:
        return offer
    return None
