"""Performing the effects of calls: looking at arguments, waiting for places, calling, telling.

A try of a call is started once in a process, and what it came to is kept until it stands: if its
session goes to another node and comes back meanwhile, it is joined, not repeated. The rules are
``ledger``'s, running functions is a host's. Lives on the bus's loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from rookery.actors.kernel.decider import Effect
from rookery.actors.kernel.effect_runner import LeftToOthers, Performer
from rookery.actors.kernel.local_ask import Ask
from rookery.actors.kernel.task_set import Tasks
from rookery.actors.tools.approval_subject import Wanted, wanted
from rookery.actors.tools.attempt_cache import Tries, TryResult
from rookery.actors.tools.authoring.registry import ToolCallContext
from rookery.actors.tools.call_notifier import CallBoard
from rookery.actors.tools.call_rules import acts_until_ms
from rookery.actors.tools.call_slots import Places, Stage
from rookery.actors.tools.catalogue import VisibleTool, VisibleTools
from rookery.actors.tools.effects import (
    Act,
    AskApproval,
    Begin,
    CallEnded,
    CallOffApproval,
    Interrupted,
    Prepare,
    Standing,
    TellCall,
)
from rookery.actors.tools.faults import check_arguments, fault, fault_of
from rookery.actors.tools.host import NotCalled, OutcomeUnknown, PastTry, ToolHost
from rookery.actors.tools.state import Call
from rookery.bus.ports import IN_FACT_BYTES_MAX, Blobs
from rookery.schemas.calls import (
    ApprovalNoted,
    ApprovalUnwanted,
    Arguments,
    CallOutcome,
    DrivingQuery,
    DrivingView,
    ToolFault,
)
from rookery.schemas.digest import canonical_json, digest_bytes
from rookery.schemas.errors import CODES, CodedError, Failed, Refused

__all__ = ["Acting"]

log = logging.getLogger(__name__)

FAMILY: Final = "tool"


class Acting:
    """One a node."""

    def __init__(
        self,
        *,
        ask: Ask,
        blobs: Blobs,
        visible: VisibleTools,
        hosts: Mapping[str, ToolHost],
        places: Places,
        board: CallBoard,
        epoch: str,
        now_ms: Callable[[], int],
        acts_for: Callable[[str], bool],
        is_gone: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """``hosts`` call the tools, by surface. ``acts_for``: whether this node is certain at this
        moment that a session is its own. ``is_gone``: whether the process of an intent, as the
        intent names it, is known to have ended."""
        self._ask, self._blobs, self._visible, self._hosts = ask, blobs, visible, hosts
        self._places, self._board, self._epoch, self._now_ms = places, board, epoch, now_ms
        self._acts_for, self._is_gone = acts_for, is_gone
        self._tries = Tries()
        self.tasks = Tasks()
        """Places on their way back."""

    @property
    def performers(self) -> dict[type[Effect], Performer]:
        return {
            Prepare: self.prepare,
            AskApproval: self.ask_approval,
            CallOffApproval: self.call_off,
            Act: self.act,
            TellCall: self.tell,
        }

    async def tell(self, effect: TellCall) -> None:
        """Whoever waits hears of it, and a call that has ended waits for no place any more."""
        if effect.known.outcome is not UNSET:
            self._places.leave(effect.known.operation_id)
        self._board.tell(effect.known)

    async def prepare(self, effect: Prepare) -> None:
        """Bring a requested call to its intent, or to its end if it turns out to be none."""
        call = effect.call
        wrong = await self._wrong_arguments(call, self._tool(call))
        begin = Begin(operation_id=call.operation_id, fault=wrong)
        if wrong is UNSET:
            await self._ask_with_place(effect.session, call, begin)
        else:
            await self._ask(FAMILY, effect.session, begin, Standing)

    async def ask_approval(self, effect: AskApproval) -> None:
        """Put the call before approvals, unless it turns out to be none. Whoever is asked may look
        at its arguments in the blob store, under the digest that the approval is bound to."""
        call, session = effect.call, effect.session
        found = await self._wanted(call, self._tool(call))
        if isinstance(found, Wanted):
            await self._blobs.put(found.text)
            await self._ask("approval", session, found.said, ApprovalNoted)
        else:
            begin = Begin(operation_id=call.operation_id, fault=found)
            await self._ask(FAMILY, session, begin, Standing)

    async def call_off(self, effect: CallOffApproval) -> None:
        unwanted = ApprovalUnwanted(operation_id=effect.operation_id)
        await self._ask("approval", effect.session, unwanted, ApprovalNoted)

    async def act(self, effect: Act) -> None:
        """Call the tool and put on record what came of it."""
        call, session = effect.call, effect.session
        if call.node != self._epoch:
            await self._find_out(session, call)
            return
        result = await asyncio.shield(await self._try(session, call))
        if not result.called:  # The intent waits for the session's owner, which may be this node.
            raise Refused("PARTITION_UNOWNED", f"{session} may have moved to another node")
        if result.unknown:
            await self._find_out(session, call, result.unknown)
            self._tries.stands(call.place)
            return
        await self._end(session, call, result)
        self._tries.stands(call.place)

    async def _end(
        self, session: str, call: Call, result: TryResult, *, by_worker: bool = False
    ) -> None:
        """Put the outcome of a try on record."""
        outcome, digest = result.outcome, ""
        if outcome.error is UNSET:
            digest = digest_bytes(result.text)
            if len(result.text) > IN_FACT_BYTES_MAX:
                blob = await self._blobs.put(result.text)
                outcome = replace(outcome, value=None, value_blob=blob)
        ended = CallEnded(
            operation_id=call.operation_id,
            attempt=call.attempt,
            outcome=outcome,
            response_digest=digest,
            by_worker=by_worker,
        )
        await self._ask(FAMILY, session, ended, Standing)

    # --- before the intent ------------------------------------------------------------------------

    def _tool(self, call: Call) -> VisibleTool:
        """One that is not here may be elsewhere: its call waits for that, and has not failed."""
        tool = self._visible.get(call.name)
        if tool is None:
            raise LeftToOthers(f"a call needs a tool that is not here: {call.name}")
        return tool

    async def _wanted(self, call: Call, tool: VisibleTool) -> Wanted | ToolFault:
        """What to put before approvals, or what is wrong with it."""
        arguments = await self._arguments(call)
        if isinstance(arguments, ToolFault):
            return arguments
        return await asyncio.to_thread(wanted, tool, call, arguments)

    async def _wrong_arguments(self, call: Call, tool: VisibleTool) -> ToolFault | UnsetType:
        """What is wrong with arguments nobody has looked at yet. They are large, so a thread does
        it."""
        if call.arguments_blob is UNSET:
            return UNSET
        try:
            data = await self._blobs.get(call.arguments_blob)
            await asyncio.to_thread(_check, tool, data)
        except CodedError as error:
            if isinstance(error, Failed) and CODES[error.code].retryable:
                raise
            return fault_of(error)
        return UNSET

    async def _ask_with_place(self, session: str, call: Call, body: msgspec.Struct) -> None:
        """Wait for a place and ask for the intent; without one the place is given back."""
        place, stands = call.next_place, False
        try:
            if await self._places.wait(place, session, call.name):
                standing = await self._ask(FAMILY, session, body, Standing)
                stands = standing == Standing(attempt=place.attempt, node=self._epoch)
        finally:
            if not stands:
                self._places.give_back(place, Stage.AWAITED)

    async def _find_out(self, session: str, call: Call, reason: str = "") -> None:
        """The intent is that of a process that is gone, or ``reason`` says why nobody knows."""
        said = Interrupted(operation_id=call.operation_id, attempt=call.attempt, reason=reason)
        if not call.idempotent:
            try:
                outcome = await self._asked_after(call)
            except OutcomeUnknown as unknown:
                words = fault("RECOVERY_REQUIRED", str(unknown)).message
                gone = not reason and self._is_gone(call.node)
                said = replace(said, gone=gone, workers_say=words)
            else:
                await self._end(session, call, _result(outcome), by_worker=True)
                return
        elif not await self._is_wanted(session, call):
            said = replace(said, unwanted=True)
        else:
            self._tool(call)  # Where it is missing, another node may try again.
            if await self._can_be_called(call):
                await self._ask_with_place(session, call, said)
                return
            said = replace(said, unwanted=True)
        await self._ask(FAMILY, session, said, Standing)

    async def _asked_after(self, call: Call) -> CallOutcome:
        """The outcome of the present try, as the workers of its tool know it; else
        ``OutcomeUnknown``. Its time is that since the intent: workers keep none."""
        host = self._hosts.get(call.surface)
        if host is None:
            raise OutcomeUnknown
        past = PastTry(
            name=call.name,
            call_id=call.operation_id,
            attempt=call.attempt,
            schema_digest=call.schema_digest,
            left_ms=acts_until_ms(call) - self._now_ms(),
        )
        with self._board.in_flight(
            call.run, call.operation_id, lambda: host.cancel(call.operation_id)
        ):
            outcome = await _word(host, past)
        since_ms = call.deadline_at_ms - call.timeout_ms
        return replace(outcome, duration_ms=max(0, self._now_ms() - since_ms))

    async def _is_wanted(self, session: str, call: Call) -> bool:
        """Whether the run stands and has not gone on without the call."""
        query = DrivingQuery(run_id=call.run)
        view = await self._ask("turn", session, query, DrivingView)
        wanted = {asked.operation_id for asked in (*view.calls, *view.beside)}
        return not (view.ended or view.cancelling) and call.operation_id in wanted

    async def _can_be_called(self, call: Call) -> bool:
        """Wait until it can; ``False`` if its run is to end before."""
        host = self._hosts.get(call.surface)
        if host is None:  # It is another surface's now, and the ledger knows what that means.
            return True
        ready = asyncio.ensure_future(host.ready(call.name))

        def give_up() -> None:
            ready.cancel()

        try:
            with self._board.in_flight(call.run, call.operation_id, give_up):
                await asyncio.wait({ready})
            return not ready.cancelled() and ready.result() is None
        finally:
            give_up()

    # --- the act ----------------------------------------------------------------------------------

    async def _try(self, session: str, call: Call) -> asyncio.Future[TryResult]:
        """The try of the call, begun now or before."""
        if (begun := self._tries.get(call.place)) is not None:
            return begun
        arguments = await self._arguments(call)
        if (begun := self._tries.get(call.place)) is not None:  # While they were fetched.
            return begun
        return self._tries.begin(call.place, self._call(session, call, arguments))

    async def _arguments(self, call: Call) -> Arguments | ToolFault:
        if call.arguments_blob is UNSET:
            return Arguments() if call.arguments is UNSET else call.arguments
        try:
            return _read(await self._blobs.get(call.arguments_blob))
        except CodedError as error:
            if CODES[error.code].retryable:
                raise
            return fault_of(error)

    async def _call(self, session: str, call: Call, arguments: Arguments | ToolFault) -> TryResult:
        began_ms = self._now_ms()
        self._places.use(call.place)
        try:
            result = await self._called(session, call, arguments, call.deadline_at_ms - began_ms)
        except OutcomeUnknown as unknown:
            why = fault("RECOVERY_REQUIRED", str(unknown) or "its host does not say why").message
            result = TryResult(CallOutcome(), b"", why)
        except NotCalled:
            result = TryResult(CallOutcome(), b"", called=False)
        except Exception as error:  # A host says how a call fails; if it fails, so has the call.
            log.exception("a tool's host failed", extra={"surface": call.surface})
            wrong = fault("TOOL_ERROR", f"{type(error).__name__}: {error}")
            result = TryResult(CallOutcome(error=wrong), b"")
        finally:
            self.tasks.begin(self._vacate(call))
        duration_ms = max(0, self._now_ms() - began_ms)
        return result._replace(outcome=replace(result.outcome, duration_ms=duration_ms))

    async def _called(
        self, session: str, call: Call, arguments: Arguments | ToolFault, left_ms: int
    ) -> TryResult:
        if isinstance(arguments, ToolFault):
            return TryResult(CallOutcome(error=arguments), b"")
        if left_ms <= 0:
            text = f"the {call.timeout_ms} ms of {call.name} were over before it could be called"
            return TryResult(CallOutcome(error=fault("TIMEOUT_TOOL", text)), b"")
        host = self._hosts[call.surface]
        context = _context(session, call, arguments)
        if self._board.is_given_up(call.operation_id):
            text = f"the program gave {call.name} up before it was called"
            return TryResult(CallOutcome(error=fault("CANCELLED", text)), b"")
        operation = call.operation_id
        with self._board.in_flight(call.run, operation, lambda: host.cancel(operation)):
            outcome = await host.call(context, left_ms, lambda: self._acts_for(session))
        return _result(outcome)

    async def _vacate(self, call: Call) -> None:
        """The place is free when nothing of the call runs any more."""
        if (host := self._hosts.get(call.surface)) is not None:
            await host.gone(call.operation_id)
        self._places.give_back(call.place, Stage.USED)


async def _word(host: ToolHost, past: PastTry) -> CallOutcome:
    """What the host's workers say; an answer that cannot be read says nothing."""
    try:
        return await host.ask_after(past)
    except CodedError as error:
        if CODES[error.code].retryable:
            raise
        raise OutcomeUnknown(f"the answer of its worker cannot be read: {error}") from error


def _result(outcome: CallOutcome) -> TryResult:
    """What a host says, cut to what can be stored."""
    if outcome.error is not UNSET:
        wrong = fault(outcome.error.code, outcome.error.message)
        return TryResult(replace(outcome, error=wrong), b"")
    return TryResult(outcome, canonical_json(outcome.value))


def _check(tool: VisibleTool, data: bytes) -> None:
    check_arguments(tool, _read(data))


def _read(data: bytes) -> Arguments:
    try:
        return msgspec.json.decode(data, type=Arguments)
    except msgspec.DecodeError as error:
        raise Refused("INVALID_ARGUMENT", f"the blob holds no arguments: {error}") from None


def _context(session: str, call: Call, arguments: Arguments) -> ToolCallContext:
    return ToolCallContext(
        name=call.name,
        args=arguments.args,
        kwargs=arguments.kwargs,
        idempotency_key=call.operation_id,
        session_id=session,
        run_id=call.run,
        call_id=call.operation_id,
        attempt=call.attempt,
        deadline_ms=call.deadline_at_ms,
        traceparent=None if call.traceparent is UNSET else call.traceparent,
    )
