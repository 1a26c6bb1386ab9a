"""What one run leaves on record: its steps, its calls, that it is parked, and its one end.

Steps are numbered from the first one ever taken. A driver that is taken up again takes some that
stand already: these are counted, and not put on record twice. That the run has ended meanwhile, or
is to, is noticed here at the next step. It waits for nothing but the record, knows no driver, and
makes no fact: what a step comes to is ``turns``' to decide.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from rookery.actors.kernel.local_ask import AskActor
from rookery.actors.messages import (
    ActiveRunView,
    CallProgress,
    CallsQuery,
    CallsView,
    ParkRun,
    RecordStep,
    TurnInput,
)
from rookery.actors.sandbox.contract import ProgramCall
from rookery.actors.turns.run_state import cancelled_result, end_run, end_unexecuted
from rookery.bus.ports import IN_FACT_BYTES_MAX, Blobs
from rookery.schemas.calls import CallArguments, RequestedCall
from rookery.schemas.codec import encode_json
from rookery.schemas.ids import derived_uuid7
from rookery.schemas.run import RunResult, RunStatus

__all__ = ["RunEnded", "StepRecorder"]

BATCH_BYTES_MAX = 128 << 10
"""Of arguments in one step: two families put them into facts, and these have their limit."""
TIME_STEPS_MAX = 1_000
"""So often a program may see that time has passed before that stands."""


class RunEnded(Exception):
    """The run has ended on record, or is to end now."""


class StepRecorder:
    """One run's, for as long as somebody drives it."""

    def __init__(self, ask: AskActor, blobs: Blobs, session: str, view: ActiveRunView) -> None:
        self._ask, self._blobs, self._session, self._view = ask, blobs, session, view
        self.run_id = view.run_id
        self._steps = 0
        """How many steps the driver has taken, those of before included, but for its last."""
        self._answered = not view.calls
        self._answered_operations: tuple[str, ...] | UnsetType = UNSET
        """What the driver was given since the last step, if that was not all it waited for."""
        self._passed_ms: list[int] = []
        """How far its clock went on since then."""

    def resume_at(self, steps: int, *, answered: bool) -> None:
        """The driver stands where it has taken so many; whether it was told what it waited for."""
        self._steps, self._answered = steps, answered

    # --- calls ------------------------------------------------------------------------------------

    def operation_id(self, number: int) -> str:
        """The same call has the same id, whoever makes it and how often."""
        view = self._view
        return derived_uuid7(view.started_at_ms, self._session, view.run_id, str(number))

    async def to_requested_calls(self, calls: Sequence[ProgramCall]) -> tuple[RequestedCall, ...]:
        """The calls of one step as they go on record: large arguments stand in the blob store."""
        room = min(IN_FACT_BYTES_MAX, BATCH_BYTES_MAX // max(1, len(calls)))
        return tuple([await self._to_requested_call(call, room) for call in calls])

    async def fetch_calls(self) -> tuple[CallProgress, ...]:
        """What the run has asked for so far, and what came of it."""
        query = CallsQuery(run_id=self.run_id)
        return (await self._ask("tool", self._session, query, CallsView)).calls

    async def _to_requested_call(self, call: ProgramCall, room: int) -> RequestedCall:
        arguments = CallArguments(args=call.args, kwargs=call.kwargs)
        asked = RequestedCall(
            operation_id=self.operation_id(call.id),
            number=call.id,
            name=call.name,
            digest=call.digest,
            awaited=call.awaited,
            arguments=arguments,
        )
        text = encode_json(arguments)
        if len(text) <= room:
            return asked
        blob = await self._blobs.put(text)
        return msgspec.structs.replace(asked, arguments=UNSET, arguments_blob=blob)

    # --- steps ------------------------------------------------------------------------------------

    @property
    def is_recovering(self) -> bool:
        """Whether the next step stands already."""
        return self._steps < self._view.steps

    @property
    def has_only_time_passed(self) -> bool:
        """The driver saw this since its last step, nothing else, and not too often: it need not
        stand before something follows from it."""
        return self._answered_operations == () and len(self._passed_ms) < TIME_STEPS_MAX

    def set_answers(self, given: tuple[str, ...] | UnsetType, passed_ms: int) -> None:
        """What the driver is told, for its next step to say. ``given``: operations, if these are
        not all it waited for; ``passed_ms``: nothing, if its clock stands still."""
        self._answered_operations, self._answered = given, True
        if passed_ms:
            self._passed_ms.append(passed_ms)

    async def record_request(
        self, moves: tuple[TurnInput, ...], calls: tuple[RequestedCall, ...], timer_ms: int | None
    ) -> None:
        """The next step stands, after which the driver waits for calls."""
        await self.record(moves, calls, timer_ms)
        self._answered = False

    async def record(
        self,
        moves: tuple[TurnInput, ...],
        calls: tuple[RequestedCall, ...] = (),
        timer_ms: int | None = None,
    ) -> None:
        """The next step stands, if it did not already, unless the run has ended meanwhile."""
        self._steps += 1
        given, passed_ms = self._answered_operations, tuple(self._passed_ms)
        self._answered_operations, self._passed_ms = UNSET, []
        if self._steps <= self._view.steps:
            return
        step = RecordStep(
            run_id=self.run_id,
            number=self._steps,
            given=given,
            passed_ms=passed_ms,
            moves=moves,
            calls=calls,
            timer_ms=UNSET if timer_ms is None else timer_ms,
        )
        view = await self._ask("turn", self._session, step, ActiveRunView)
        if view.cancelling or view.ended:
            raise RunEnded

    # --- rest, and the end ------------------------------------------------------------------------

    async def park(
        self, code: str, waits_for: tuple[str, ...], snapshot: tuple[str, str], *, split: bool
    ) -> bool:
        """Whether the run is to go on when what it waits for has come; ``snapshot``: its id and
        blob; ``split``: whether calls of several steps are open."""
        snapshot_id, blob = snapshot
        parked = ParkRun(
            run_id=self.run_id,
            code=code,
            snapshot_id=snapshot_id,
            snapshot_blob=blob,
            waits_for=waits_for,
            split=split,
        )
        view = await self._ask("turn", self._session, parked, ActiveRunView)
        if view.cancelling:
            await self._ask("turn", self._session, end_unexecuted(view), ActiveRunView)
        return not view.cancelling and not view.ended

    async def end(
        self, result: RunResult, *, kept: bool, moves: tuple[TurnInput, ...] | None = None
    ) -> ActiveRunView:
        """The run's last step, as its driver took it. It may have ended otherwise meanwhile."""
        step = RecordStep(
            run_id=self.run_id,
            number=self._next_number,
            answered=self._answered,
            given=self._answered_operations,
            passed_ms=tuple(self._passed_ms),
            moves=end_run(self.run_id, result) if moves is None else moves,
            result=result,
            kept=kept,
        )
        return await self._ask("turn", self._session, await self._with_blobs(step), ActiveRunView)

    async def end_stopped(self, result: RunResult | None) -> None:
        """The run's last step, if its driver was stopped: that has come to nothing that counts."""
        step = RecordStep(
            run_id=self.run_id,
            number=self._next_number,
            answered=False,
            moves=end_run(self.run_id, cancelled_result(UNSET)),
            result=cancelled_result(UNSET if result is None else result),
        )
        await self._ask("turn", self._session, await self._with_blobs(step), ActiveRunView)

    async def _with_blobs(self, step: RecordStep) -> RecordStep:
        """A large result stands in the blob store."""
        result = step.result
        assert result is not UNSET, "only a last step has one"
        if result.status is RunStatus.CANCELLED:
            result = cancelled_result(result)
        text = encode_json(result)
        if len(text) <= IN_FACT_BYTES_MAX:
            return step
        told = msgspec.structs.replace(
            result, result=None, stdout="", stderr="", external_calls=(), diagnostics=()
        )
        blob = await self._blobs.put(text)
        return msgspec.structs.replace(step, result=told, result_blob=blob)

    @property
    def _next_number(self) -> int:
        """The number of the step that ends the run, wherever its driver stands."""
        return max(self._steps, self._view.steps) + 1
