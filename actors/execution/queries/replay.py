"""The query ``replay``: executes a past run again and compares its calls and its result.

The session is rebuilt from the snapshot before the run and the runs in between, and the run gets
its recorded results: no tool is called, no fact is recorded. Durations are not compared, nor is
fuel on another guest build. For a run that ended by its time limit or a cancellation only the calls
are compared, because its progress at the end is unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from rookery.actors.execution.history import PastRun, without_limits
from rookery.actors.execution.models import ModelReplay, RunDiffers
from rookery.actors.execution.rebuilt_session import SessionRebuilder
from rookery.actors.sandbox import STATUS_OF_CODE, Outcome, ProgramCall, SuspendedRun, ToolResult
from rookery.actors.sandbox.sessions import RecordedCall, ResultBatch
from rookery.bus.ports import Delivery
from rookery.schemas.agents import ModelUsage
from rookery.schemas.codec import decode_command
from rookery.schemas.commands import ReplayQuery
from rookery.schemas.digest import canonical_json, digest_bytes
from rookery.schemas.errors import Refused
from rookery.schemas.ids import check_client_session
from rookery.schemas.replies import ReplayReport
from rookery.schemas.run import RunRequest, RunResult, RunStatus

__all__ = ["RunReplayer"]

POLL_S: Final = 1.0
"""A client that waits for a long replay gets its progress this often."""
IDLE_S: Final = 30.0
"""A replay is cancelled after this time without a request."""
REPLAYS_MAX: Final = 16
"""Each occupies a session of the sandbox."""
TIME_FACTOR: Final = 10
"""A run that ended within its limit may take this much longer: machines differ."""
OPEN_ENDED: Final = frozenset({RunStatus.TIMEOUT, RunStatus.CANCELLED})
BUDGET_EXHAUSTED: Final = "BUDGET_EXHAUSTED"
"""A model's run ends so by what other runs have used, too, and by prices of that day: only its
questions and calls are compared."""
MODEL_CODES: Final = frozenset(
    {
        "MODEL_FAILED",
        "MODEL_MISBEHAVED",
        "MODEL_REFUSED",
        "NO_PROGRESS",
        "OUTPUT_INVALID",
        "TURN_LIMIT",
    }
)
"""The driver of a model comes to these ends by itself."""


class RunReplayer:
    """One per node; lives on the bus's loop."""

    def __init__(
        self,
        rebuilder: SessionRebuilder,
        poll_s: float = POLL_S,
        *,
        replays_max: int = REPLAYS_MAX,
        idle_s: float = IDLE_S,
    ) -> None:
        self._rebuilder, self._poll_s = rebuilder, poll_s
        self._replays_max, self._idle_s = replays_max, idle_s
        self._replays: dict[tuple[str, str], _Replay] = {}
        """Running replays, and ended ones whose report has not been sent."""

    async def reply(self, delivery: Delivery) -> ReplayReport:
        """The query ``replay``: the report, or the progress. A replay without requests is
        cancelled."""
        session = check_client_session(delivery.key)
        query = decode_command(delivery.body, ReplayQuery, content_type=delivery.content_type)
        key = session, query.run_id
        replay = self._replays.get(key)
        if replay is None:
            if len(self._replays) >= self._replays_max:
                raise Refused(
                    "QUOTA_EXCEEDED",
                    f"this node replays {self._replays_max} runs, which is the limit",
                    hint="ask again when one of them has ended",
                )
            replay = self._replays[key] = _Replay(self._rebuilder, session, query.run_id)
            replay.start()
        replay.expire_after(self._idle_s, lambda: self._drop(key, replay))
        done, _ = await asyncio.wait({replay.task}, timeout=self._poll_s)
        if not done:
            return replay.report
        self._drop(key, replay)
        return replay.task.result()

    async def close(self) -> None:
        """Cancel all replays."""
        held = tuple(self._replays.items())
        for key, replay in held:
            self._drop(key, replay)
        await asyncio.gather(*(replay.task for _, replay in held), return_exceptions=True)

    def _drop(self, key: tuple[str, str], replay: _Replay) -> None:
        if self._replays.get(key) is replay:
            del self._replays[key]
            replay.cancel()


class _Replay:
    def __init__(self, rebuilder: SessionRebuilder, session: str, run_id: str) -> None:
        self._rebuilder, self._session = rebuilder, session
        self.report = ReplayReport(run_id=run_id, session_id=session, state="replaying", runs=1)
        self.task: asyncio.Future[ReplayReport]
        self._expiry: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self.task = asyncio.ensure_future(self.run())
        # No request may be left to receive a failure.
        self.task.add_done_callback(lambda over: over.cancelled() or over.exception())

    def expire_after(self, idle_s: float, forget: Callable[[], None]) -> None:
        """Restart the timer of requests."""
        if self._expiry is not None:
            self._expiry.cancel()
        self._expiry = asyncio.get_running_loop().call_later(idle_s, forget)

    def cancel(self) -> None:
        """Cancel the replay if it is running."""
        if self._expiry is not None:
            self._expiry.cancel()
        self.task.cancel()

    async def run(self) -> ReplayReport:
        """Run the whole replay."""
        found = await self._rebuilder.reader.find(self._session, self.report.run_id)
        is_of_model = found.environment.model is not UNSET
        try:
            await (self._replay_model(found) if is_of_model else self._replay_program(found))
        except RunDiffers as difference:
            self._update_report(
                state="different",
                difference=difference.what,
                recorded=difference.recorded,
                replayed=difference.replayed,
            )
        else:
            self._update_report(state="equal", runs_done=self.report.runs)
        return self.report

    async def _replay_program(self, found: PastRun) -> None:
        reader = self._rebuilder.reader
        base = await reader.snapshot_before(self._session, found)
        *before, run = await reader.runs(self._session, found.generation, base, until=found.run_id)
        recorded = _comparable(run, await reader.result(run))
        earlier = [one for one in before if one.kept]
        self._update_report(runs=len(earlier) + 1)
        begun = before[0] if before else run
        async with self._rebuilder.rebuilt(base, (), begun, anyhow=True) as name:
            for one in earlier:
                await self._rerun(name, one, await reader.result(one))
                self._update_report(runs_done=self.report.runs_done + 1)
            outcome = await self._rerun(name, run, recorded)
            same_build = self._rebuilder.sandbox.build_of(name) == run.environment.build
        self._compare(run, recorded, outcome, same_build=same_build)

    async def _replay_model(self, found: PastRun) -> None:
        """The conversation before the run is on record: no other run is executed."""
        replay = ModelReplay(self._rebuilder.reader, self._session, found)
        await replay.read()
        recorded = _ended(found, await self._rebuilder.reader.result(found))
        last = await replay.steps()
        compared = [f"{replay.questions} questions", f"{replay.calls} calls"]
        self._update_report(calls=replay.calls, compared=tuple(compared))
        code = "" if recorded.error is None else recorded.error.code
        if recorded.status in OPEN_ENDED or code == BUDGET_EXHAUSTED:
            return
        if last is None:
            if code and code not in MODEL_CODES:
                raise _ended_by_node(found, code)
            raise RunDiffers("end", recorded.status, "goes on")
        self._compare_aspects(recorded, last.result, _MODEL_ASPECTS, compared)

    async def _rerun(self, name: str, run: PastRun, recorded: RunResult) -> Outcome:
        """Execute a run as far as its record goes."""
        sandbox, recorded_answers = self._rebuilder.sandbox, _RecordedAnswers(run)
        tools = await self._rebuilder.reader.program_tools(run.environment)
        request = await self._rebuilder.reader.complete(
            _replay_request(name, run, open_ended=recorded.status in OPEN_ENDED)
        )
        going = sandbox.submit(
            request, now_ms=run.now_ms, answer=recorded_answers.answer, tools=tools
        )
        outcome = await asyncio.wrap_future(going)
        while isinstance(outcome, SuspendedRun):
            batch = recorded_answers.answers(outcome.calls)
            if batch is None:
                break
            answers = {call.number: call.answer for call in batch.calls}
            for advance_ms in batch.passed_ms[:-1]:
                going = sandbox.submit_resume(
                    name, {}, advance_ms=advance_ms, answer=recorded_answers.answer
                )
                await asyncio.wrap_future(going)
            advance_ms = batch.passed_ms[-1] if batch.passed_ms else 0
            going = sandbox.submit_resume(
                name, answers, advance_ms=advance_ms, answer=recorded_answers.answer
            )
            outcome = await asyncio.wrap_future(going)
            if run.run_id == self.report.run_id:
                self._update_report(calls=recorded_answers.calls)
        recorded_answers.check_complete()
        return outcome

    def _compare(
        self, run: PastRun, recorded: RunResult, outcome: Outcome, *, same_build: bool
    ) -> None:
        """Compare aspect by aspect; raises ``RunDiffers`` at the first one that differs."""
        compared = [f"{run.calls} calls"]
        self._update_report(calls=run.calls, compared=tuple(compared))
        if recorded.status not in OPEN_ENDED:
            if isinstance(outcome, SuspendedRun):
                numbers = [call.id for call in outcome.calls]
                raise RunDiffers("end", recorded.status, f"waits for calls {numbers}")
            aspects = _FUELLED if same_build else _ASPECTS
            self._compare_aspects(recorded, outcome, aspects, compared)

    def _compare_aspects(
        self,
        recorded: RunResult,
        replayed: RunResult,
        aspects: Mapping[str, Any],
        compared: list[str],
    ) -> None:
        for what, before, now in _aspects(recorded, replayed, aspects):
            if before != now:
                self._update_report(compared=tuple(compared))
                raise RunDiffers(what, before, now)
            compared.append(what)
        self._update_report(compared=tuple(compared))

    def _update_report(self, **fields: Any) -> None:
        self.report = replace(self.report, **fields)


class _RecordedAnswers:
    """A run's recorded results, returned for the same calls. Also used on the sandbox's thread
    while the replay waits."""

    def __init__(self, run: PastRun) -> None:
        self._run_id = run.run_id
        self._batches = [batch for batch in run.batches if batch.calls or batch.passed_ms]
        self._next = 0
        self._difference: RunDiffers | None = None

    @property
    def calls(self) -> int:
        return sum(len(batch.calls) for batch in self._batches[: self._next])

    def answer(self, call: ProgramCall) -> ToolResult | None:
        """The result of a synchronous call; ``None`` stops the run there."""
        if call.awaited:
            return None
        try:
            batch = self._match([call])
        except RunDiffers as difference:
            self._difference = difference
            return None
        return None if batch is None else batch.calls[0].answer

    def answers(self, calls: Sequence[ProgramCall]) -> ResultBatch | None:
        """The results of the calls a run waits for; ``None`` where the record ends."""
        if self._difference is not None:
            raise self._difference
        return self._match(calls)

    def check_complete(self) -> None:
        """Raise ``RunDiffers`` if recorded calls were not made."""
        if self._difference is not None:
            raise self._difference
        if self._next < len(self._batches):
            missed = [_request_of(call) for call in self._batches[self._next].calls]
            raise RunDiffers(f"end of run {self._run_id}", missed, "asked for no more calls")

    def _match(self, calls: Sequence[ProgramCall]) -> ResultBatch | None:
        """The batch's calls must be among the requested ones; all of them if the batch is whole."""
        if self._next == len(self._batches):
            return None
        batch = self._batches[self._next]
        before, now = (
            [_request_of(call) for call in batch.calls],
            [_request_of(call) for call in calls],
        )
        if not batch.whole:
            now = [one for one in now if one in before]
        if before != now:
            numbers = ", ".join(str(call.number) for call in batch.calls)
            raise RunDiffers(f"request of call {numbers} of run {self._run_id}", before, now)
        self._next += 1
        return batch


def _request_of(call: ProgramCall | RecordedCall) -> dict[str, Any]:
    number = call.id if isinstance(call, ProgramCall) else call.number
    return {"number": number, "name": call.name, "digest": call.digest}


def _replay_request(name: str, run: PastRun, *, open_ended: bool) -> RunRequest:
    limits = run.environment.limits
    if not open_ended:
        limits = replace(
            limits, wall_ms=TIME_FACTOR * limits.wall_ms, cpu_ms=TIME_FACTOR * limits.cpu_ms
        )
    return replace(
        without_limits(run.hooked_request), session_id=name, limits=limits, return_snapshot=False
    )


def _comparable(run: PastRun, recorded: RunResult) -> RunResult:
    """The run's recorded result; ``Refused`` if it has none to compare with."""
    error = _ended(run, recorded).error
    if error is not None and error.code not in STATUS_OF_CODE:
        raise _ended_by_node(run, error.code)
    return recorded


def _ended(run: PastRun, recorded: RunResult) -> RunResult:
    if not run.ended_at_sequence or (run.result is UNSET and run.result_blob is UNSET):
        raise Refused(
            "GUARD_REJECTED",
            f"run {run.run_id} has no result yet",
            hint=f"rookery runs show {run.run_id}",
        )
    return recorded


def _ended_by_node(run: PastRun, code: str) -> Refused:
    what = "its program" if run.environment.model is UNSET else "its model"
    text = f"run {run.run_id} was ended with {code} by its node and not by {what}"
    return Refused("GUARD_REJECTED", text)


def _aspects(
    recorded: RunResult, replayed: RunResult, aspects: Mapping[str, Any]
) -> Iterator[tuple[str, object, object]]:
    """What a run of the same course reproduces, the most telling first."""
    if recorded.artifacts or replayed.artifacts:
        yield "artifacts", _artifacts(recorded), _artifacts(replayed)
    for what, of in aspects.items():
        yield what, of(recorded), of(replayed)


def _artifacts(result: RunResult) -> list[tuple[str, str]]:
    return [(one.artifact_ref, one.content_hash) for one in result.artifacts or ()]


def _text_digest(text: str) -> str:
    return digest_bytes(text.encode())


_OF_ALL: Final[Mapping[str, Any]] = {
    "status": lambda result: result.status,
    "error": lambda result: None if result.error is None else result.error.code,
    "call records": lambda result: [
        (call.name, call.request_digest, call.response_digest, call.status)
        for call in result.external_calls
    ],
    "result": lambda result: digest_bytes(canonical_json(result.result)),
}
_ASPECTS: Final[Mapping[str, Any]] = {
    **_OF_ALL,
    "stdout": lambda result: _text_digest(result.stdout),
    "stderr": lambda result: _text_digest(result.stderr),
}
_FUELLED: Final[Mapping[str, Any]] = {
    **_ASPECTS,
    "fuel": lambda result: result.metrics.instructions,
}
_MODEL_ASPECTS: Final[Mapping[str, Any]] = {
    **_OF_ALL,
    "usage": lambda result: _use(result.usage),
    "stop reason": lambda result: result.stop_reason,
}


def _use(usage: ModelUsage | UnsetType) -> ModelUsage:
    """Without what lost answers may have cost: that is an estimate by prices of that day."""
    return ModelUsage() if usage is UNSET else replace(usage, maybe_paid_micro_usd=0)
