"""Driving a node's runs: what the effects of turns come to.

One run a session at a time; each is a ``Work``. Runs whose partition is lost are dropped as they
stand, for the next owner takes them up from the record. It owns no rule of turns and no memory of
sessions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakValueDictionary

import msgspec
from msgspec import UNSET

from rookery.actors.execution.driver import Driver
from rookery.actors.execution.history import Reader
from rookery.actors.execution.pending_calls import Board
from rookery.actors.execution.run_execution import Memory, Work
from rookery.actors.kernel.decider import Effect
from rookery.actors.kernel.effect_runner import Performer
from rookery.actors.kernel.history_restart import TellBroken
from rookery.actors.kernel.local_ask import Ask
from rookery.actors.turns.run_state import (
    Drive,
    DriveOn,
    NoteResult,
    StopDriving,
    TellOver,
    TellParked,
    ended_at_rest,
)
from rookery.bus.ports import Answer, Blobs
from rookery.schemas.calls import (
    CallsQuery,
    CallsView,
    DrivingQuery,
    DrivingView,
    HistoryBroken,
    Offer,
    RunReady,
    TurnNoted,
    TurnOver,
    WaitingQuery,
    WaitingView,
)
from rookery.schemas.codec import encode_json
from rookery.schemas.commands import RunAnswer
from rookery.schemas.errors import CODES, CodedError
from rookery.schemas.run import (
    CallStatus,
    ErrorObject,
    ExternalCallRecord,
    Metrics,
    RunResult,
    RunStatus,
    SideEffect,
)

__all__ = ["Runner"]

log = logging.getLogger(__name__)

NOT_OURS: Final = "PARTITION_UNOWNED"


@dataclass(kw_only=True)
class Runner:
    """One a node; lives on the bus's loop."""

    ask: Ask
    board: Board
    blobs: Blobs
    reader: Reader
    memory: Memory
    driver: Callable[[], Driver]
    expect: Callable[[Offer], None]
    """``Refused`` if what a run was given is no more, ``LeftToOthers`` if it only is not here."""
    note: Callable[[str, RunResult], None]
    """What a run has come to, for those who are about to ask."""
    answer: Callable[[Sequence[Answer]], None]
    surplus: Callable[[Callable[[str], bool]], Sequence[str]]
    """Sessions the memory should do without, but for those that are busy."""
    _works: dict[str, Work] = field(default_factory=dict)
    _again: set[str] = field(default_factory=set)
    """Runs whose driving has failed, and is to be tried again."""
    _turns: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)
    _making_room: asyncio.Task[None] | None = None

    @property
    def performers(self) -> Mapping[type[Effect], Performer]:
        return {
            Drive: self.drive,
            DriveOn: self.drive_on,
            TellOver: self.tell_over,
            TellBroken: self.tell_broken,
            StopDriving: self.stop,
            NoteResult: self.note_result,
            TellParked: self.tell_parked,
        }

    async def drive(self, effect: Drive) -> None:
        """Take the run's steps until it has ended or is parked."""
        turn, run_id = self._turn(effect.session), effect.view.run_id
        stale = turn.locked() or run_id in self._again
        async with turn:
            view = effect.view
            if stale:  # The run may have gone on since.
                self._again.discard(run_id)
                query = DrivingQuery(run_id=run_id)
                view = await self.ask("turn", effect.session, query, DrivingView)
            if view.ended or view.parked or view.offer is UNSET:
                return
            if view.cancelling:
                await self._end_at_rest(effect.session, view)
                return
            try:
                await self._drive(effect.session, view, view.offer)
            except Exception:
                self._again.add(run_id)
                raise
        surplus = self.surplus(self._turns.__contains__)
        if surplus and (self._making_room is None or self._making_room.done()):
            self._making_room = asyncio.create_task(self._make_room(surplus))

    async def drive_on(self, effect: DriveOn) -> None:
        """Whoever was to drive the run may be gone, or may be doing so here."""
        run_id = effect.run_id
        if run_id not in self._works:
            view = await self.ask("turn", effect.session, DrivingQuery(run_id=run_id), DrivingView)
            if run_id not in self._works:
                await self.drive(Drive(key=effect.key, session=effect.session, view=view))

    async def tell_over(self, effect: TellOver) -> None:
        await self.ask("session", effect.session, TurnOver(run_id=effect.run_id), TurnNoted)

    async def tell_broken(self, effect: TellBroken) -> None:
        """The session can do without its turn, and the turn without everybody else."""
        session, family = effect.session, effect.family
        said = HistoryBroken(family=family, code=effect.code, message=effect.message)
        if family == "turn":
            await self.ask("session", session, said, TurnNoted)
            return
        view = await self.ask("turn", session, said, DrivingView)
        work = self._works.get(view.run_id)
        if view.ended and work is not None:
            await work.stop()

    async def stop(self, effect: StopDriving) -> None:
        """Somebody wants the run to end now."""
        work = self._works.get(effect.run_id)
        if work is not None:
            await work.stop()
            return
        query = DrivingQuery(run_id=effect.run_id)
        view = await self.ask("turn", effect.session, query, DrivingView)
        if view.cancelling:
            await self._end_at_rest(effect.session, view)

    async def let_go(self, session: str) -> None:
        """The session leaves the node's memory: it is idle, another node's, or one too many."""
        async with self._turn(session):
            await self.memory.forget(session)

    async def goes_on(self, session: str, run_id: str) -> bool:
        """Before a call of the run is made that somebody has allowed: whether there is anything for
        it to go on with. If there never will be, the run ends, and nothing was executed."""
        if run_id in self._works:
            return True
        view = await self.ask("turn", session, DrivingQuery(run_id=run_id), DrivingView)
        if not view.parked or view.ended or view.offer is UNSET:
            return not view.ended
        try:
            self.expect(view.offer)
            await self.memory.require(view.offer)
        except CodedError as error:
            if CODES[error.code].retryable:
                raise
            log.warning("a run cannot go on", extra={"run": run_id, "code": error.code})
            async with self._turn(session):
                await Work(self, self.driver(), session, view).fail(error)
            return False
        return True

    async def note_result(self, effect: NoteResult) -> None:
        self.note(effect.run_id, effect.result)

    async def tell_parked(self, effect: TellParked) -> None:
        """Not an end: who wants that is told it later, too. What came while the run was on its way
        to rest has woken nobody."""
        query = CallsQuery(run_id=effect.run_id)
        known = (await self.ask("tool", effect.session, query, CallsView)).calls
        waited = {call.operation_id for call in effect.calls}
        if any(call.operation_id in waited and call.outcome is not UNSET for call in known):
            ready = RunReady(run_id=effect.run_id)
            await self.ask("turn", effect.session, ready, DrivingView)
            return
        who = WaitingQuery(run_id=effect.run_id)
        waiting = await self.ask("session", effect.session, who, WaitingView)
        view = await self.ask(
            "turn", effect.session, DrivingQuery(run_id=effect.run_id), DrivingView
        )
        offered = () if view.offer is UNSET else view.offer.tools
        touches = {tool.name: tool.side_effect for tool in offered}
        said = encode_json(interim(effect, touches, len(known)))
        self.answer([Answer(reply_to, said) for reply_to in waiting.reply_to])

    async def _make_room(self, surplus: Sequence[str]) -> None:
        """Beside the runs. Whoever wants a session meanwhile has it, or has it brought back."""
        for session in surplus:
            if session not in self._turns:
                await self.let_go(session)

    def _turn(self, session: str) -> asyncio.Lock:
        """Whoever has it may use the session's sandbox."""
        lock = self._turns.get(session)
        if lock is None:
            lock = self._turns[session] = asyncio.Lock()
        return lock

    async def _drive(self, session: str, view: DrivingView, offer: Offer) -> None:
        """What is ours to mend is tried again; what no trying again would mend ends the run."""
        work = self._works[view.run_id] = Work(self, self.driver(), session, view)
        try:
            try:
                self.expect(offer)
                await work.go()
            except CodedError as error:
                if error.code == NOT_OURS or CODES[error.code].retryable:
                    raise
                log.warning(
                    "a run cannot be driven", extra={"run": view.run_id, "code": error.code}
                )
                await work.fail(error)
        except BaseException:
            await work.drop()
            raise
        finally:
            del self._works[view.run_id]

    async def _end_at_rest(self, session: str, view: DrivingView) -> None:
        """Nobody drives it: it is parked, or was about to begin."""
        await self.ask("turn", session, ended_at_rest(view), DrivingView)


def interim(effect: TellParked, touches: Mapping[str, SideEffect], calls: int) -> RunAnswer:
    """How a parked run stands, as its result would look if that were its end: of its calls, those
    it waits for. ``touches``: what each tool may touch; ``calls``: how many it has made."""
    for_approval = effect.code == "WAITING_FOR_APPROVAL"
    status = RunStatus.WAITING_FOR_APPROVAL if for_approval else RunStatus.INTERRUPTED
    names = ", ".join(call.name for call in effect.calls)
    error = ErrorObject(
        code=effect.code,
        message=f"the run waits, and nothing of it is held in memory: {names}",
        hint=f"rookery runs show {effect.run_id}",
    )
    result = RunResult.failed(status, error, "", Metrics(external_calls_count=calls))
    records = tuple(
        ExternalCallRecord(
            name=call.name,
            side_effect=touches.get(call.name, SideEffect.NONE),
            status=CallStatus.APPROVAL_PENDING if for_approval else CallStatus.ERROR,
            request_digest=call.digest,
        )
        for call in effect.calls
    )
    told = msgspec.structs.replace(result, external_calls=records, snapshot_id=effect.snapshot_id)
    return RunAnswer.of(told, effect.run_id, effect.session)
