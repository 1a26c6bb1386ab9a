"""The executor of calls: checks arguments, waits for slots, calls tools, and records outcomes.

A process begins each attempt once and stores the result until it is committed: if the session moves
to another node and returns, its attempt is joined instead of repeated. A host runs the tools. Lives
on the bus loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from time import perf_counter
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from rookery.actors.credentials import NO_CREDENTIALS, CredentialSource
from rookery.actors.kernel import Effect
from rookery.actors.kernel.executors import AskActor, EffectHandler, Failpoints, NotExecutableHere
from rookery.actors.messages import (
    ActiveRunQuery,
    ActiveRunView,
    ApprovalAcknowledged,
    CallProgress,
    RecordedApprovalQuery,
    RecordedApprovalView,
    RecordOutcome,
    WithdrawApproval,
)
from rookery.actors.metrics import NO_METRICS, KernelMetrics
from rookery.actors.protection.sensitive_values import (
    NO_SEAL,
    CallSeal,
    SensitiveParts,
    shown_arguments,
)
from rookery.actors.tools.attempts.attempts import (
    AttemptCache,
    AttemptResult,
    CallNotifier,
    attempt_result,
    call_context,
    call_with_credential,
    failed_attempt,
)
from rookery.actors.tools.attempts.call_slots import CallSlots, SlotStage
from rookery.actors.tools.authoring.registry import ToolCredential
from rookery.actors.tools.calls.call_rules import closed_fault
from rookery.actors.tools.catalogue.catalogue import (
    ApprovalSubject,
    CatalogueTool,
    ToolCatalogue,
    approval_subject,
)
from rookery.actors.tools.effects import (
    AskApproval,
    AttemptLost,
    BeginCall,
    CancelApproval,
    ExecuteCall,
    FollowTask,
    IntentStatus,
    NotifyCall,
    PrepareCall,
    RecordTask,
)
from rookery.actors.tools.hosts.host import OutcomeUnknown, ToolHost
from rookery.actors.tools.hosts.past_attempts import PastAttempts
from rookery.actors.tools.state import ToolCall
from rookery.actors.tools.validation.capability_checks import decode_arguments, fault, fault_of
from rookery.bus.ports import IN_FACT_BYTES_MAX, Blobs, TaskSet, ValueSeal, wait_first
from rookery.schemas.calls import CallArguments, CallOutcome, ToolFault
from rookery.schemas.digest import canonical_json, digest_bytes, digest_json
from rookery.schemas.errors import CODES, CodedError, Failed, Refused

__all__ = ["CallExecutor"]

log = logging.getLogger(__name__)

FAMILY: Final = "turn"


class CallExecutor:
    """One per node."""

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
        failpoints: Failpoints | None = None,
        seal: ValueSeal = NO_SEAL,
        credentials: CredentialSource = NO_CREDENTIALS,
    ) -> None:
        """``hosts`` call the tools, by surface. ``acts_for``: whether this node is certain now that
        it owns a session. ``is_gone``: whether the process of an intent is known to have ended."""
        self._ask, self._blobs, self._catalogue, self._hosts = ask, blobs, visible, hosts
        self._slots, self._notifier, self._epoch, self._now_ms = places, board, epoch, now_ms
        self._owns_session, self._has_process_ended = acts_for, is_gone
        self._attempts, self._metrics = AttemptCache(), metrics
        self._failpoints, self._seal = failpoints or Failpoints(), seal
        self._credentials = credentials
        self._past = PastAttempts(
            hosts=hosts, board=board, catalogue=visible, credentials=credentials, now_ms=now_ms
        )
        self.tasks = TaskSet()
        """Releases of slots."""

    @property
    def handlers(self) -> dict[type[Effect], EffectHandler]:
        return {
            PrepareCall: self.prepare_call,
            AskApproval: self.request_approval,
            CancelApproval: self.withdraw_approval,
            ExecuteCall: self.execute,
            FollowTask: self.follow_task,
            NotifyCall: self.notify,
        }

    def notify(self, effect: NotifyCall) -> None:
        """Notify the driver; an ended call stops waiting for a slot."""
        if effect.progress.outcome is not UNSET:
            self._slots.stop_waiting(effect.progress.operation_id)
            self._past.cancel_task(effect.progress.operation_id)
        self._notifier.notify(effect.progress)

    async def prepare_call(self, effect: PrepareCall) -> None:
        """Bring a requested call to its intent, or refuse it for a fault of its arguments."""
        call = effect.call
        wrong = self._removed_fault(call)
        if wrong is UNSET:
            wrong = await self._argument_fault(effect.session, call, self._require_tool(call))
        begin = BeginCall(operation_id=call.operation_id, fault=wrong)
        if wrong is UNSET:
            await self._request_intent(effect.session, call, begin)
        else:
            await self._ask(FAMILY, effect.session, begin, IntentStatus)

    async def request_approval(self, effect: AskApproval) -> None:
        """Request the approval, or refuse the call for a fault. Approvers may read its arguments in
        the blob store, under the digest that the approval is bound to."""
        call, session = effect.call, effect.session
        found: ApprovalSubject | ToolFault | UnsetType = self._removed_fault(call)
        if found is UNSET and effect.may_be_recorded:
            query = RecordedApprovalQuery(operation_id=call.operation_id)
            if (await self._ask("approval", session, query, RecordedApprovalView)).is_recorded:
                return
        if found is UNSET:
            found = await self._approval_subject(effect, self._require_tool(call))
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
        """Call the tool and record the outcome."""
        call, session = effect.call, effect.session
        if call.node != self._epoch:
            await self._resolve_unknown(session, call)
            return
        attempt = await self._attempt(session, call)
        await wait_first((attempt,))  # It goes on if this effect is cancelled.
        result = attempt.result()
        if not result.called:  # The owner of the session, maybe this node, executes the intent.
            raise Refused("PARTITION_UNOWNED", f"{session} may have moved to another node")
        if result.unknown_reason:
            await self._resolve_unknown(session, call, result.unknown_reason)
            self._attempts.confirm(call.current_attempt)
            return
        if result.task:
            created = RecordTask(
                operation_id=call.operation_id,
                attempt=call.attempt,
                task=result.task,
                left_ms=result.task_left_ms,
            )
            self._failpoints.hit("task_created")
            await self._ask(FAMILY, session, created, IntentStatus)
        else:
            await self._record_outcome(session, call, result)
        self._attempts.confirm(call.current_attempt)

    async def follow_task(self, effect: FollowTask) -> None:
        """Follow the task of a call, on whichever node owns its session; record its outcome."""
        call, session = effect.call, effect.session
        try:
            outcome = await self._past.task_outcome(call, partial(self._is_awaited, session, call))
        except OutcomeUnknown as unknown:
            await self._resolve_unknown(session, call, str(unknown))
            return
        await self._record_outcome(session, call, attempt_result(outcome), by_worker=True)

    async def _record_outcome(
        self, session: str, call: ToolCall, result: AttemptResult, *, by_worker: bool = False
    ) -> None:
        outcome, digest, text = result.outcome, "", result.text
        if outcome.error is UNSET:
            digest = digest_bytes(text)
            if self._sensitive_parts(call).result:
                value = CallSeal(self._seal, session).seal_result(call.operation_id, text)
                outcome, text = replace(outcome, value=value, sealed=True), canonical_json(value)
            if len(text) > IN_FACT_BYTES_MAX:
                blob = await self._blobs.put(text)
                outcome = replace(outcome, value=None, value_blob=blob)
        ended = RecordOutcome(
            operation_id=call.operation_id,
            attempt=call.attempt,
            outcome=outcome,
            response_digest=digest,
            by_worker=by_worker,
        )
        await self._report(session, ended, may_pass=not by_worker)

    async def _report(self, session: str, ended: RecordOutcome, *, may_pass: bool) -> None:
        """Let the driver record the outcome with its next step; record it alone if no driver waits
        for it, or if the next step takes long."""
        self._failpoints.hit("call_ended")
        recorded = None
        if may_pass:
            progress = CallProgress(
                operation_id=ended.operation_id, outcome=ended.outcome, unrecorded=ended
            )
            recorded = self._notifier.pass_unrecorded(progress)
        if recorded is not None:
            self._failpoints.hit("outcome_passed")
            if await self._notifier.is_recorded(ended.operation_id, recorded):
                return
        await self._ask(FAMILY, session, ended, IntentStatus)

    # --- before the intent ------------------------------------------------------------------------

    def _require_tool(self, call: ToolCall) -> CatalogueTool:
        """The tool; if this node does not offer it, the call waits for a node that does."""
        tool = self._catalogue.get(call.name)
        if tool is None:
            raise NotExecutableHere(f"this node does not offer the tool of a call: {call.name}")
        return tool

    def _removed_fault(self, call: ToolCall) -> ToolFault | UnsetType:
        """Of a call whose surface no node offers any more: it must not wait for another node."""
        if not self._catalogue.is_removed(call.surface):
            return UNSET
        return closed_fault(call.surface, "SURFACE_UNAVAILABLE")

    async def _approval_subject(
        self, effect: AskApproval, tool: CatalogueTool
    ) -> ApprovalSubject | ToolFault:
        session, call = effect.session, effect.call
        recorded = await self._load_arguments(call)
        if isinstance(recorded, ToolFault):
            return recorded
        arguments = self._opened(session, call, recorded)
        subject = await asyncio.to_thread(
            approval_subject, tool, call, arguments, effect.package_fingerprint, effect.classes
        )
        if isinstance(subject, ToolFault) or not tool.checks.sensitive.arguments:
            return subject
        parts, bound = tool.checks.sensitive, subject.request.arguments
        digests = {name: digest_json(bound[name]) for name in bound if name in parts.arguments}
        return subject.hidden(shown_arguments(parts, recorded), digests)

    async def _argument_fault(
        self, session: str, call: ToolCall, tool: CatalogueTool
    ) -> ToolFault | UnsetType:
        """The fault of arguments from the blob store, or of sealed ones. They may be large, so a
        thread checks them."""
        if call.arguments_blob is UNSET and not tool.checks.sensitive.arguments:
            return UNSET
        try:
            recorded = await self._load_arguments(call)
            if isinstance(recorded, ToolFault):
                return recorded
            arguments = self._opened(session, call, recorded)
            await asyncio.to_thread(tool.check_arguments, arguments)
        except CodedError as error:
            if isinstance(error, Failed) and CODES[error.code].retryable:
                raise
            return fault_of(error)
        return UNSET

    async def _request_intent(self, session: str, call: ToolCall, body: msgspec.Struct) -> None:
        """Wait for a slot and request the intent; without an intent the slot is released."""
        attempt, is_intended = call.next_attempt, False
        try:
            if await self._slots.wait(attempt, session, call.name):
                status = await self._ask(FAMILY, session, body, IntentStatus)
                is_intended = status == IntentStatus(attempt=attempt.attempt, node=self._epoch)
        finally:
            if not is_intended:
                self._slots.release(attempt, SlotStage.ASSIGNED)

    async def _resolve_unknown(self, session: str, call: ToolCall, reason: str = "") -> None:
        """Resolve an attempt with an unknown outcome: its process has ended, or gave a
        ``reason``."""
        lost = AttemptLost(operation_id=call.operation_id, attempt=call.attempt, reason=reason)
        if not call.idempotent:
            try:
                outcome = await self._past.worker_outcome(call)
            except OutcomeUnknown as unknown:
                text = fault("RECOVERY_REQUIRED", str(unknown)).message
                gone = not reason and self._has_process_ended(call.node)
                lost = replace(lost, gone=gone, worker_report=text)
            else:
                await self._record_outcome(session, call, attempt_result(outcome), by_worker=True)
                return
        elif not await self._is_awaited(session, call):
            lost = replace(lost, not_awaited=True)
        elif not self._catalogue.is_removed(call.surface):
            self._require_tool(call)  # If this node lacks it, another node may try again.
            if await self._wait_ready(call):
                await self._request_intent(session, call, lost)
                return
            lost = replace(lost, not_awaited=True)
        await self._ask(FAMILY, session, lost, IntentStatus)

    async def _is_awaited(self, session: str, call: ToolCall) -> bool:
        """Whether the run is active and waits for the call."""
        query = ActiveRunQuery(run_id=call.run)
        view = await self._ask("turn", session, query, ActiveRunView)
        awaited = {one.operation_id for one in (*view.calls, *view.beside)}
        awaited.update(view.of_program)
        return not (view.ended or view.cancelling) and call.operation_id in awaited

    async def _wait_ready(self, call: ToolCall) -> bool:
        """Wait until the tool can be called; ``False`` if the run ends first."""
        host = self._hosts.get(call.surface)
        if host is None:  # The tool has moved to another surface; the rules handle that.
            return True
        ready = asyncio.ensure_future(host.wait_ready(call.name))

        def cancel() -> None:
            ready.cancel()

        try:
            with self._notifier.cancel_scope(call.run, call.operation_id, cancel):
                await asyncio.wait({ready})
            return not ready.cancelled() and ready.result() is None
        finally:
            cancel()

    # --- the act ----------------------------------------------------------------------------------

    async def _attempt(self, session: str, call: ToolCall) -> asyncio.Future[AttemptResult]:
        """The attempt of the call; begins it if needed."""
        if (begun := self._attempts.get(call.current_attempt)) is not None:
            return begun
        arguments = await self._load_arguments(call)
        if isinstance(arguments, CallArguments):
            arguments = self._opened(session, call, arguments)
        if (
            begun := self._attempts.get(call.current_attempt)
        ) is not None:  # Begun during the fetch.
            return begun
        if (result := self._act_at_once(session, call, arguments)) is not None:
            return self._attempts.put(call.current_attempt, result)
        return self._attempts.begin(
            call.current_attempt, self._run_attempt(session, call, arguments)
        )

    def _sensitive_parts(self, call: ToolCall) -> SensitiveParts:
        tool = self._catalogue.get(call.name)
        return SensitiveParts() if tool is None else tool.checks.sensitive

    def _opened(self, session: str, call: ToolCall, arguments: CallArguments) -> CallArguments:
        """The arguments as the program wrote them. Without their key the call waits for a node that
        has it."""
        parts = self._sensitive_parts(call)
        if not parts.arguments:
            return arguments
        try:
            return CallSeal(self._seal, session).open_arguments(parts, call.operation_id, arguments)
        except Refused as refusal:
            if refusal.code != "SEALING_KEY_MISSING":
                raise
            raise NotExecutableHere(refusal.message) from None

    async def _load_arguments(self, call: ToolCall) -> CallArguments | ToolFault:
        if call.arguments_blob is UNSET:
            return CallArguments() if call.arguments is UNSET else call.arguments
        try:
            return decode_arguments(await self._blobs.get(call.arguments_blob))
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
        except Exception as error:
            result = self._failed_attempt(call, error)
        finally:
            self.tasks.start(self._release_slot(call))
        return self._measured(call, result, began_ms, began_s)

    def _act_at_once(
        self, session: str, call: ToolCall, arguments: CallArguments | ToolFault
    ) -> AttemptResult | None:
        """The result of a quick function, called here without a task; ``None`` for any other."""
        host, bound = self._hosts.get(call.surface), self._catalogue.binding_of(call.name)
        if host is None or bound or isinstance(arguments, ToolFault):
            return None
        began_ms, began_s = self._now_ms(), perf_counter()
        if self._fault_before(call, call.deadline_at_ms - began_ms) is not None:
            return None
        context = call_context(session, call, arguments)
        try:
            outcome = host.call_quickly(context, lambda: self._owns_session(session))
            if outcome is None:
                return None
            result = attempt_result(outcome)
        except Exception as error:
            result = self._failed_attempt(call, error)
        self._slots.mark_running(call.current_attempt)
        self._slots.release(call.current_attempt, SlotStage.RUNNING)
        return self._measured(call, result, began_ms, began_s)

    def _measured(
        self, call: ToolCall, result: AttemptResult, began_ms: int, began_s: float
    ) -> AttemptResult:
        """The result of an attempt that has ended, with its duration."""
        seconds, ended = perf_counter() - began_s, result.metrics_outcome
        self._metrics.tool_call(call.name, call.surface, ended, seconds)
        duration_ms = max(0, self._now_ms() - began_ms)
        return result._replace(outcome=replace(result.outcome, duration_ms=duration_ms))

    def _fault_before(self, call: ToolCall, left_ms: int) -> ToolFault | None:
        """Why the tool is not called any more."""
        if left_ms <= 0:
            text = f"the timeout of {call.name}, {call.timeout_ms} ms, passed before it was called"
            return fault("TIMEOUT_TOOL", text)
        if self._notifier.is_dropped(call.operation_id):
            return fault("CANCELLED", f"the program dropped {call.name} before it was called")
        return None

    async def _call_host(
        self, session: str, call: ToolCall, arguments: CallArguments | ToolFault, left_ms: int
    ) -> AttemptResult:
        if isinstance(arguments, ToolFault):
            return AttemptResult(CallOutcome(error=arguments), b"")
        host = self._hosts.get(call.surface)
        if host is None:  # Removed since the intent.
            gone = closed_fault(call.surface, "SURFACE_UNAVAILABLE")
            return AttemptResult(CallOutcome(error=gone), b"")
        if (wrong := self._fault_before(call, left_ms)) is not None:
            return AttemptResult(CallOutcome(error=wrong), b"")
        context, operation = call_context(session, call, arguments), call.operation_id
        binding = self._catalogue.binding_of(call.name)

        def begin(credential: ToolCredential | None) -> Awaitable[CallOutcome]:
            given = context if credential is None else replace(context, credential=credential)
            return host.call(given, left_ms, lambda: self._owns_session(session))

        with self._notifier.cancel_scope(call.run, operation, lambda: host.cancel(operation)):
            if binding:
                outcome = await call_with_credential(self._credentials, binding, begin)
            else:
                outcome = await begin(None)
        return attempt_result(outcome)

    def _failed_attempt(self, call: ToolCall, error: Exception) -> AttemptResult:
        sensitive = bool(self._sensitive_parts(call) or self._catalogue.binding_of(call.name))
        return failed_attempt(call.name, call.operation_id, error, sensitive=sensitive)

    async def _release_slot(self, call: ToolCall) -> None:
        """Release the slot when nothing of the call runs any more."""
        if (host := self._hosts.get(call.surface)) is not None:
            await host.wait_finished(call.operation_id)
        self._slots.release(call.current_attempt, SlotStage.RUNNING)
