"""Performing the effects of calls: looking at arguments, waiting for places, calling, telling.

A try of a call is started once in a process, and what it came to is kept until it stands: if its
session goes to another node and comes back meanwhile, it is joined, not repeated. The rules are
``ledger``'s, running functions is a host's. Lives on the bus's loop.

A call as it is put before approvals: bound, and with exactly the arguments it was recorded with.

Whether it is allowed, and who is asked, is not known here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Final, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from rookery.actors.kernel import NO_METRICS, KernelMetrics
from rookery.actors.kernel.decider import Effect
from rookery.actors.kernel.effect_runner import EffectHandler, NotExecutableHere
from rookery.actors.kernel.local_ask import AskActor
from rookery.actors.kernel.task_set import TaskSet
from rookery.actors.messages import (
    ActiveRunQuery,
    ActiveRunView,
    ApprovalAcknowledged,
    RequestApproval,
    WithdrawApproval,
)
from rookery.actors.tools.attempt_cache import AttemptCache, AttemptResult
from rookery.actors.tools.authoring.registry import ToolCallContext
from rookery.actors.tools.call_notifier import CallNotifier
from rookery.actors.tools.call_rules import acts_until_ms
from rookery.actors.tools.call_slots import CallSlots, SlotStage
from rookery.actors.tools.catalogue import CatalogueTool, ToolCatalogue, check_arguments
from rookery.actors.tools.effects import (
    AskApproval,
    AttemptLost,
    BeginCall,
    CancelApproval,
    ExecuteCall,
    IntentStatus,
    NotifyCall,
    PrepareCall,
    RecordOutcome,
)
from rookery.actors.tools.faults import fault, fault_of
from rookery.actors.tools.host import NotCalled, OutcomeUnknown, PastAttempt, ToolHost
from rookery.actors.tools.state import ToolCall
from rookery.bus.ports import IN_FACT_BYTES_MAX, Blobs
from rookery.schemas.calls import CallArguments, CallOutcome, ToolFault
from rookery.schemas.digest import canonical_json, digest_bytes
from rookery.schemas.errors import CODES, CodedError, Failed, Refused

__all__ = ["ApprovalSubject", "CallExecutor", "approval_subject"]


class ApprovalSubject(NamedTuple):
    """What approvals are told of a call."""

    request: RequestApproval
    text: bytes
    """Its canonical arguments, whose digest an approval is bound to."""


def approval_subject(
    tool: CatalogueTool, call: ToolCall, arguments: CallArguments
) -> ApprovalSubject | ToolFault:
    """The call, or what is wrong with it: nobody is asked about one that cannot be made."""
    try:
        bound = tool.checks.check_arguments(arguments.args, arguments.kwargs)
        text = tool.checks.encode_request(arguments.args, arguments.kwargs)
    except CodedError as error:
        return fault_of(error)
    if digest_bytes(text) != call.request_digest or call.approval is UNSET:
        return fault("INVALID_ARGUMENT", f"these are not the arguments {call.name} was called with")
    said = RequestApproval(
        operation_id=call.operation_id,
        run_id=call.run,
        generation=call.generation,
        name=call.name,
        surface=call.surface,
        side_effect=tool.capability.side_effect,
        idempotent=call.idempotent,
        schema_digest=call.schema_digest,
        policy=call.approval,
        request_digest=call.request_digest,
        arguments=bound,
        arguments_ref=f"blob:{call.request_digest}",
    )
    return ApprovalSubject(said, text)


log = logging.getLogger(__name__)

FAMILY: Final = "tool"


class CallExecutor:
    """One a node."""

    def __init__(
        self,
        *,
        ask: AskActor,
        blobs: Blobs,
        visible: ToolCatalogue,
        hosts: Mapping[str, ToolHost],
        places: CallSlots,
        board: CallNotifier,
        epoch: str,
        now_ms: Callable[[], int],
        acts_for: Callable[[str], bool],
        is_gone: Callable[[str], bool] = lambda _: False,
        metrics: KernelMetrics = NO_METRICS,
    ) -> None:
        """``hosts`` call the tools, by surface. ``acts_for``: whether this node is certain at this
        moment that a session is its own. ``is_gone``: whether the process of an intent, as the
        intent names it, is known to have ended."""
        self._ask, self._blobs, self._catalogue, self._hosts = ask, blobs, visible, hosts
        self._slots, self._notifier, self._epoch, self._now_ms = places, board, epoch, now_ms
        self._owns_session, self._has_process_ended = acts_for, is_gone
        self._attempts, self._metrics = AttemptCache(), metrics
        self.tasks = TaskSet()
        """Places on their way back."""

    @property
    def handlers(self) -> dict[type[Effect], EffectHandler]:
        return {
            PrepareCall: self.prepare_call,
            AskApproval: self.request_approval,
            CancelApproval: self.withdraw_approval,
            ExecuteCall: self.execute,
            NotifyCall: self.notify,
        }

    async def notify(self, effect: NotifyCall) -> None:
        """Whoever waits hears of it, and a call that has ended waits for no place any more."""
        if effect.progress.outcome is not UNSET:
            self._slots.stop_waiting(effect.progress.operation_id)
        self._notifier.notify(effect.progress)

    async def prepare_call(self, effect: PrepareCall) -> None:
        """Bring a requested call to its intent, or to its end if it turns out to be none."""
        call = effect.call
        wrong = await self._argument_fault(call, self._require_tool(call))
        begin = BeginCall(operation_id=call.operation_id, fault=wrong)
        if wrong is UNSET:
            await self._request_intent(effect.session, call, begin)
        else:
            await self._ask(FAMILY, effect.session, begin, IntentStatus)

    async def request_approval(self, effect: AskApproval) -> None:
        """Put the call before approvals, unless it turns out to be none. Whoever is asked may look
        at its arguments in the blob store, under the digest that the approval is bound to."""
        call, session = effect.call, effect.session
        found = await self._approval_subject(call, self._require_tool(call))
        if isinstance(found, ApprovalSubject):
            await self._blobs.put(found.text)
            await self._ask("approval", session, found.request, ApprovalAcknowledged)
        else:
            begin = BeginCall(operation_id=call.operation_id, fault=found)
            await self._ask(FAMILY, session, begin, IntentStatus)

    async def withdraw_approval(self, effect: CancelApproval) -> None:
        unwanted = WithdrawApproval(operation_id=effect.operation_id)
        await self._ask("approval", effect.session, unwanted, ApprovalAcknowledged)

    async def execute(self, effect: ExecuteCall) -> None:
        """Call the tool and put on record what came of it."""
        call, session = effect.call, effect.session
        if call.node != self._epoch:
            await self._resolve_unknown(session, call)
            return
        result = await asyncio.shield(await self._attempt(session, call))
        if not result.called:  # The intent waits for the session's owner, which may be this node.
            raise Refused("PARTITION_UNOWNED", f"{session} may have moved to another node")
        if result.unknown_reason:
            await self._resolve_unknown(session, call, result.unknown_reason)
            self._attempts.confirm(call.current_attempt)
            return
        await self._record_outcome(session, call, result)
        self._attempts.confirm(call.current_attempt)

    async def _record_outcome(
        self, session: str, call: ToolCall, result: AttemptResult, *, by_worker: bool = False
    ) -> None:
        """Put the outcome of a try on record."""
        outcome, digest = result.outcome, ""
        if outcome.error is UNSET:
            digest = digest_bytes(result.text)
            if len(result.text) > IN_FACT_BYTES_MAX:
                blob = await self._blobs.put(result.text)
                outcome = replace(outcome, value=None, value_blob=blob)
        ended = RecordOutcome(
            operation_id=call.operation_id,
            attempt=call.attempt,
            outcome=outcome,
            response_digest=digest,
            by_worker=by_worker,
        )
        await self._ask(FAMILY, session, ended, IntentStatus)

    # --- before the intent ------------------------------------------------------------------------

    def _require_tool(self, call: ToolCall) -> CatalogueTool:
        """One that is not here may be elsewhere: its call waits for that, and has not failed."""
        tool = self._catalogue.get(call.name)
        if tool is None:
            raise NotExecutableHere(f"a call needs a tool that is not here: {call.name}")
        return tool

    async def _approval_subject(
        self, call: ToolCall, tool: CatalogueTool
    ) -> ApprovalSubject | ToolFault:
        """What to put before approvals, or what is wrong with it."""
        arguments = await self._load_arguments(call)
        if isinstance(arguments, ToolFault):
            return arguments
        return await asyncio.to_thread(approval_subject, tool, call, arguments)

    async def _argument_fault(self, call: ToolCall, tool: CatalogueTool) -> ToolFault | UnsetType:
        """What is wrong with arguments nobody has looked at yet. They are large, so a thread does
        it."""
        if call.arguments_blob is UNSET:
            return UNSET
        try:
            data = await self._blobs.get(call.arguments_blob)
            await asyncio.to_thread(_check_encoded_arguments, tool, data)
        except CodedError as error:
            if isinstance(error, Failed) and CODES[error.code].retryable:
                raise
            return fault_of(error)
        return UNSET

    async def _request_intent(self, session: str, call: ToolCall, body: msgspec.Struct) -> None:
        """Wait for a place and ask for the intent; without one the place is given back."""
        place, stands = call.next_attempt, False
        try:
            if await self._slots.wait(place, session, call.name):
                standing = await self._ask(FAMILY, session, body, IntentStatus)
                stands = standing == IntentStatus(attempt=place.attempt, node=self._epoch)
        finally:
            if not stands:
                self._slots.release(place, SlotStage.ASSIGNED)

    async def _resolve_unknown(self, session: str, call: ToolCall, reason: str = "") -> None:
        """The intent is that of a process that is gone, or ``reason`` says why nobody knows."""
        said = AttemptLost(operation_id=call.operation_id, attempt=call.attempt, reason=reason)
        if not call.idempotent:
            try:
                outcome = await self._worker_outcome(call)
            except OutcomeUnknown as unknown:
                words = fault("RECOVERY_REQUIRED", str(unknown)).message
                gone = not reason and self._has_process_ended(call.node)
                said = replace(said, gone=gone, worker_report=words)
            else:
                await self._record_outcome(
                    session, call, _to_attempt_result(outcome), by_worker=True
                )
                return
        elif not await self._is_awaited(session, call):
            said = replace(said, not_awaited=True)
        else:
            self._require_tool(call)  # Where it is missing, another node may try again.
            if await self._wait_ready(call):
                await self._request_intent(session, call, said)
                return
            said = replace(said, not_awaited=True)
        await self._ask(FAMILY, session, said, IntentStatus)

    async def _worker_outcome(self, call: ToolCall) -> CallOutcome:
        """The outcome of the present try, as the workers of its tool know it; else
        ``OutcomeUnknown``. Its time is that since the intent: workers keep none."""
        host = self._hosts.get(call.surface)
        if host is None:
            raise OutcomeUnknown
        past = PastAttempt(
            name=call.name,
            call_id=call.operation_id,
            attempt=call.attempt,
            schema_digest=call.schema_digest,
            left_ms=acts_until_ms(call) - self._now_ms(),
        )
        with self._notifier.cancel_scope(
            call.run, call.operation_id, lambda: host.cancel(call.operation_id)
        ):
            outcome = await _query_host(host, past)
        since_ms = call.deadline_at_ms - call.timeout_ms
        return replace(outcome, duration_ms=max(0, self._now_ms() - since_ms))

    async def _is_awaited(self, session: str, call: ToolCall) -> bool:
        """Whether the run stands and has not gone on without the call."""
        query = ActiveRunQuery(run_id=call.run)
        view = await self._ask("turn", session, query, ActiveRunView)
        wanted = {asked.operation_id for asked in (*view.calls, *view.beside)}
        return not (view.ended or view.cancelling) and call.operation_id in wanted

    async def _wait_ready(self, call: ToolCall) -> bool:
        """Wait until it can; ``False`` if its run is to end before."""
        host = self._hosts.get(call.surface)
        if host is None:  # It is another surface's now, and the ledger knows what that means.
            return True
        ready = asyncio.ensure_future(host.wait_ready(call.name))

        def give_up() -> None:
            ready.cancel()

        try:
            with self._notifier.cancel_scope(call.run, call.operation_id, give_up):
                await asyncio.wait({ready})
            return not ready.cancelled() and ready.result() is None
        finally:
            give_up()

    # --- the act ----------------------------------------------------------------------------------

    async def _attempt(self, session: str, call: ToolCall) -> asyncio.Future[AttemptResult]:
        """The try of the call, begun now or before."""
        if (begun := self._attempts.get(call.current_attempt)) is not None:
            return begun
        arguments = await self._load_arguments(call)
        if (
            begun := self._attempts.get(call.current_attempt)
        ) is not None:  # While they were fetched.
            return begun
        return self._attempts.begin(
            call.current_attempt, self._run_attempt(session, call, arguments)
        )

    async def _load_arguments(self, call: ToolCall) -> CallArguments | ToolFault:
        if call.arguments_blob is UNSET:
            return CallArguments() if call.arguments is UNSET else call.arguments
        try:
            return _decode_arguments(await self._blobs.get(call.arguments_blob))
        except CodedError as error:
            if CODES[error.code].retryable:
                raise
            return fault_of(error)

    async def _run_attempt(
        self, session: str, call: ToolCall, arguments: CallArguments | ToolFault
    ) -> AttemptResult:
        began_ms, began_s = self._now_ms(), perf_counter()
        self._slots.mark_running(call.current_attempt)
        try:
            result = await self._call_host(session, call, arguments, call.deadline_at_ms - began_ms)
        except OutcomeUnknown as unknown:
            why = fault("RECOVERY_REQUIRED", str(unknown) or "its host does not say why").message
            result = AttemptResult(CallOutcome(), b"", why)
        except NotCalled:
            result = AttemptResult(CallOutcome(), b"", called=False)
        except Exception as error:  # A host says how a call fails; if it fails, so has the call.
            log.exception("a tool's host failed", extra={"surface": call.surface})
            wrong = fault("TOOL_ERROR", f"{type(error).__name__}: {error}")
            result = AttemptResult(CallOutcome(error=wrong), b"")
        finally:
            self.tasks.start(self._release_slot(call))
        seconds, ended = perf_counter() - began_s, _metrics_outcome(result)
        self._metrics.tool_call(call.name, call.surface, ended, seconds)
        duration_ms = max(0, self._now_ms() - began_ms)
        return result._replace(outcome=replace(result.outcome, duration_ms=duration_ms))

    async def _call_host(
        self, session: str, call: ToolCall, arguments: CallArguments | ToolFault, left_ms: int
    ) -> AttemptResult:
        if isinstance(arguments, ToolFault):
            return AttemptResult(CallOutcome(error=arguments), b"")
        if left_ms <= 0:
            text = f"the {call.timeout_ms} ms of {call.name} were over before it could be called"
            return AttemptResult(CallOutcome(error=fault("TIMEOUT_TOOL", text)), b"")
        host = self._hosts[call.surface]
        context = _call_context(session, call, arguments)
        if self._notifier.is_dropped(call.operation_id):
            text = f"the program gave {call.name} up before it was called"
            return AttemptResult(CallOutcome(error=fault("CANCELLED", text)), b"")
        operation = call.operation_id
        with self._notifier.cancel_scope(call.run, operation, lambda: host.cancel(operation)):
            outcome = await host.call(context, left_ms, lambda: self._owns_session(session))
        return _to_attempt_result(outcome)

    async def _release_slot(self, call: ToolCall) -> None:
        """The place is free when nothing of the call runs any more."""
        if (host := self._hosts.get(call.surface)) is not None:
            await host.wait_finished(call.operation_id)
        self._slots.release(call.current_attempt, SlotStage.RUNNING)


async def _query_host(host: ToolHost, past: PastAttempt) -> CallOutcome:
    """What the host's workers say; an answer that cannot be read says nothing."""
    try:
        return await host.query_outcome(past)
    except CodedError as error:
        if CODES[error.code].retryable:
            raise
        raise OutcomeUnknown(f"the answer of its worker cannot be read: {error}") from error


def _to_attempt_result(outcome: CallOutcome) -> AttemptResult:
    """What a host says, cut to what can be stored."""
    if outcome.error is not UNSET:
        wrong = fault(outcome.error.code, outcome.error.message)
        return AttemptResult(replace(outcome, error=wrong), b"")
    return AttemptResult(outcome, canonical_json(outcome.value))


def _metrics_outcome(result: AttemptResult) -> str:
    """The outcome of an attempt as the metrics count it."""
    if result.unknown_reason or not result.called:
        return "unknown" if result.called else "not_called"
    error = result.outcome.error
    if error is UNSET:
        return "completed"
    return "timed_out" if error.code == "TIMEOUT_TOOL" else "failed"


def _check_encoded_arguments(tool: CatalogueTool, data: bytes) -> None:
    check_arguments(tool, _decode_arguments(data))


def _decode_arguments(data: bytes) -> CallArguments:
    try:
        return msgspec.json.decode(data, type=CallArguments)
    except msgspec.DecodeError as error:
        raise Refused("INVALID_ARGUMENT", f"the blob holds no arguments: {error}") from None


def _call_context(session: str, call: ToolCall, arguments: CallArguments) -> ToolCallContext:
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
