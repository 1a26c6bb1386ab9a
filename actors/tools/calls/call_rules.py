"""Rules for calls: which facts of a call are committed. Pure except for the slots it reserves.

A call's intent is committed before its tool is called, or with its outcome if the tool only reads,
and exactly one outcome after it. If the process of an intent has ended, an idempotent call is tried
again with the same idempotency key; any other waits for an operator, because its outcome is
unknown. ``executor`` calls the tools, ``evolve`` folds the facts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from rookery.actors.credentials import LeaseGate, every_lease_fresh
from rookery.actors.messages import RecordOutcome
from rookery.actors.policy import RunPolicy
from rookery.actors.tools.agents.child_capacity import NO_CHILDREN, ChildCapacity
from rookery.actors.tools.attempts.call_slots import CallAttempt, CallSlots
from rookery.actors.tools.calls.call_requests import (
    HOST_DEFAULT,
    CallBatch,
    PeerGate,
    PolicyAnswer,
    PolicyByDigest,
    ask_policy,
    cancelled_call,
    every_peer_open,
    host_default,
    new_call,
    peer_verdict,
    recovery_required,
    refused_call,
    refused_request,
    request_terms,
    requested_code,
    requested_fact,
)
from rookery.actors.tools.calls.wait_rules import begin_wait, call_fields, credential_wait
from rookery.actors.tools.catalogue.catalogue import CatalogueTool, ToolCatalogue
from rookery.actors.tools.catalogue.visible_tools import ToolSet
from rookery.actors.tools.effects import AttemptLost, BeginCall, RecordTask
from rookery.actors.tools.state import (
    NO_VERDICT,
    NO_VERDICTS,
    CallPhase,
    HookVerdict,
    SessionCalls,
    ToolCall,
)
from rookery.actors.tools.validation.capability_checks import fault, fault_of, status_of
from rookery.schemas.agents import RUN_CODE
from rookery.schemas.calls import WAITING_FOR_APPROVAL, WAITING_FOR_TASK, RequestedCall, ToolFault
from rookery.schemas.errors import Refused
from rookery.schemas.facts import approval, code, turn
from rookery.schemas.facts import tool as facts
from rookery.schemas.protection.rights import RightsSet
from rookery.schemas.surfaces import ends_with_node
from rookery.schemas.worker_protocol import GRACE_MS

__all__ = ["NO_WAITS", "CallRules", "acts_until_ms", "closed_fault", "status_of"]

INTENTS_AT_ONCE_MAX: Final = 100
"""The intents of further calls of a batch follow in a later message: the size of a message is
limited."""
_PHASES_BEFORE_INTENT: Final = (CallPhase.REQUESTED, CallPhase.AWAITED)
NO_WAITS: Final[Mapping[int, int]] = MappingProxyType({})
NO_SURFACES: Final[Mapping[str, str]] = MappingProxyType({})
ATTEMPTS_MAX: Final = 5
"""A call that loses a worker each time may be the cause."""


class CallRules(NamedTuple):
    """The rules, with the catalogue and slots of this node."""

    catalogue: ToolCatalogue
    slots: CallSlots
    epoch: str
    """Identifies this process."""
    rights: RightsSet = ()
    """Of the run whose calls these rules are for."""
    lease_gate: LeaseGate = every_lease_fresh
    peer_gate: PeerGate = every_peer_open
    visible: ToolSet = MappingProxyType({})
    """The tools of surfaces that the run sees, as they were when it started."""
    closed: Mapping[str, str] = NO_SURFACES
    """By surface that the session removes or has removed: the code of the refusal."""
    retries: bool = False
    """Whether a hook of the run may ask for one more attempt of a call."""
    policy: RunPolicy = HOST_DEFAULT
    """Of the run's start: it decides about requests."""
    policy_now: RunPolicy = HOST_DEFAULT
    """Of the node: it may refuse a call that has waited since its request."""
    policy_of: PolicyByDigest = host_default
    """Of runs in progress."""
    has_code: bool = False
    """Whether the calls are of a model that may act in programs."""
    capacity: ChildCapacity = NO_CHILDREN
    """What the run may give to agents."""

    # --- facts of the turn ------------------------------------------------------------------------

    def on_requested(
        self,
        state: SessionCalls,
        session: str,
        batch: CallBatch,
        *,
        now_ms: int,
        inherited: Mapping[int, int] = NO_WAITS,
        verdicts: Mapping[str, HookVerdict] = NO_VERDICTS,
    ) -> list[facts.ToolFact]:
        """A program requests calls: each is refused, or requested and begun if possible.
        ``inherited``: see ``begin_wait``; ``verdicts``: of hooks, by operation."""
        left: list[facts.ToolFact] = []
        new = [one for one in batch.calls if one.operation_id not in state.calls]
        ordinal, rules = state.requested, self
        for requested in new:
            if self._is_code(requested):
                left, ordinal = [*left, requested_code(batch, requested)], ordinal + 1
                continue
            verdict = verdicts.get(requested.operation_id, NO_VERDICT)
            requested = verdict.applied(requested)  # noqa: PLW2901 - what is executed.
            try:
                tool = self._admit(requested)
                if self.rights and verdict.fault is UNSET:
                    tool.require_right(self.rights, session, requested, now_ms, ordinal=ordinal + 1)
                if tool.agent is not None:
                    rules.capacity.reserve(tool.agent)
                answer = self._judge(requested, tool, verdict)
            except Refused as refusal:
                left.append(refused_request(batch, requested, fault_of(refusal)))
                continue
            if answer.fault is not UNSET:
                left.append(refused_request(batch, requested, answer.fault, answer.outcome))
                continue
            verdict = peer_verdict(tool, requested, verdict, self.peer_gate)
            terms = request_terms(self.policy, tool, verdict, answer, retries=self.retries)
            call, ordinal = new_call(batch, requested, tool, verdict, terms), ordinal + 1
            at_once = len(new) <= INTENTS_AT_ONCE_MAX and tool.can_check(requested)
            at_once |= bool(tool.waits_for)
            begun = rules._intent(session, call, now_ms, inherited) if at_once else ()
            if tool.agent is not None:
                rules = rules._replace(capacity=rules.capacity.after(begun))
            left += (requested_fact(call, tool, answer.outcome, waits=not begun), *begun)
        return left

    def on_run_ended(
        self,
        state: SessionCalls,
        end: turn.Completed | turn.Failed | turn.Cancelled,
        *,
        now_ms: int,
    ) -> list[facts.ToolFact]:
        """Withdraw the run's calls that never began. End those that another process intended: that
        process may never do it."""
        left: list[facts.ToolFact] = []
        for call in state.calls_of_run(end.run):
            if call.phase in _PHASES_BEFORE_INTENT and not call.attempt:
                left.append(facts.Withdrawn(**call_fields(call)))
            elif call.is_awaited(WAITING_FOR_TASK):
                left.append(cancelled_call(call, f"{call.name} went on as a task"))
            elif self.is_orphaned(call):
                left.append(self._end_orphan(call, now_ms))
        return left

    def on_dropped(
        self, state: SessionCalls, step: turn.OpsRegistered | code.Stepped
    ) -> list[facts.ToolFact]:
        """Withdraw calls that the program no longer waits for and that never began."""
        parent = step.operation_id if isinstance(step, code.Stepped) else ""
        return [
            facts.Withdrawn(**call_fields(call), given_up=True)
            for call in state.calls_of_run(str(step.run))
            if call.phase in _PHASES_BEFORE_INTENT
            and not call.attempt
            and call.operation_id not in step.op_refs
            and call.parent == parent
        ]

    def _is_code(self, requested: RequestedCall) -> bool:
        """Whether the driver executes the call as a program; a tool of that name comes first."""
        return self.has_code and requested.name == RUN_CODE and not self.catalogue.get(RUN_CODE)

    def _judge(
        self, requested: RequestedCall, tool: CatalogueTool, verdict: HookVerdict
    ) -> PolicyAnswer:
        """What hooks, then the policy say of a call that the run has a right to."""
        if verdict.fault is not UNSET:
            return PolicyAnswer(fault=verdict.fault)
        return ask_policy(self.policy, tool, requested)

    # --- decisions of approvals -------------------------------------------------------------------

    def on_allowed(
        self, state: SessionCalls, session: str, used: approval.GrantConsumed, *, now_ms: int
    ) -> Sequence[facts.ToolFact]:
        """A grant allows the call, if it is for exactly this call and the right to it is left."""
        call = state.calls.get(used.operation_id)
        if call is None or not call.is_awaited(WAITING_FOR_APPROVAL):
            return ()
        if used.request_digest not in (UNSET, call.approved_digest) or not used.grant_id:
            return ()
        wrong = self._closed_fault(call)
        if wrong is UNSET:
            wrong = self._missing_right(session, call, now_ms)
        if wrong is not UNSET:
            return (refused_call(call, wrong),)
        allowed = facts.Allowed(**call_fields(call), grant_id=used.grant_id)
        granted = replace(call, phase=CallPhase.REQUESTED, waits_for="", grant_id=used.grant_id)
        at_once = self.is_offered(granted) and self.catalogue.require(call.name).can_check(call)
        return (allowed, *(self._intent(session, granted, now_ms) if at_once else ()))

    # --- reports of the executor ------------------------------------------------------------------

    def begin(
        self, state: SessionCalls, session: str, command: BeginCall, *, now_ms: int
    ) -> Sequence[facts.ToolFact]:
        """A call that had to wait may begin, unless its check found a fault."""
        call = state.calls.get(command.operation_id)
        if call is None or not _may_begin(call):
            return ()
        wrong = command.fault
        if wrong is UNSET:
            wrong = self._closed_fault(call)
        if wrong is UNSET and not self.is_offered(call):
            wrong = ToolFault("UNKNOWN_TOOL", f"this node no longer offers {call.name}")
        if wrong is UNSET:
            wrong = self._missing_right(session, call, now_ms)
        if wrong is UNSET:
            return self._intent(session, call, now_ms)
        if call.attempt:
            return (recovery_required(call, f"{wrong.code}: {wrong.message}", call.acts_until_ms),)
        return (refused_call(call, wrong),)

    def on_attempt_lost(
        self, state: SessionCalls, session: str, report: AttemptLost, *, now_ms: int
    ) -> Sequence[facts.ToolFact]:
        """The outcome of an attempt is unknown: its process has ended, or does not know."""
        call = state.calls.get(report.operation_id)
        if call is None or call.attempt != report.attempt:
            return ()
        is_task = call.is_awaited(WAITING_FOR_TASK)
        is_ours = (call.node == self.epoch) == bool(report.reason)
        if not (is_task or (is_ours and call.phase is CallPhase.INTENDED)):
            return ()
        text = _unknown_reason(call, report)
        if not call.idempotent:
            reason = "the tool is not idempotent"
        elif report.not_awaited:
            return (cancelled_call(call, text),)
        elif (closed := self._closed_fault(call)) is not UNSET:
            reason = closed.message
        elif not self.is_offered(call):
            reason = "this node no longer offers the tool"
        elif (missing := self._missing_right(session, call, now_ms)) is not UNSET:
            reason = missing.message
        elif report.reason and call.attempt >= ATTEMPTS_MAX:
            reason = f"{call.attempt} attempts were made, the limit is {ATTEMPTS_MAX}"
        else:
            return self._intent(session, call, now_ms)
        until_ms = self._may_act_until_ms(call, now_ms)
        was_repeated = call.idempotent and call.attempt > 1
        if report.gone and ends_with_node(call.surface) and not was_repeated:
            until_ms = max(min(now_ms, call.deadline_at_ms), call.unknown_until_ms or 0)
        return (recovery_required(call, f"{text}, and {reason}", until_ms),)

    def on_task_created(
        self, state: SessionCalls, report: RecordTask, *, now_ms: int
    ) -> tuple[facts.Awaited] | tuple[()]:
        """The last attempt goes on as a task of its surface: any node may follow it."""
        call = state.calls.get(report.operation_id)
        if call is None or call.current_attempt != (report.operation_id, report.attempt):
            return ()
        if call.phase is not CallPhase.INTENDED or call.node != self.epoch:
            return ()
        until_ms = now_ms + report.left_ms if report.left_ms else UNSET
        fields = call_fields(call) | {"task": report.task, "until_ms": until_ms}
        return (facts.Awaited(**fields, code=WAITING_FOR_TASK),)

    def on_outcome(self, state: SessionCalls, report: RecordOutcome) -> Sequence[facts.ToolFact]:
        """Record the outcome of the last attempt. A worker's outcome is valid whichever process
        asked for it, as long as no operator has resolved the call."""
        call = state.calls.get(report.operation_id)
        if call is None or call.attempt != report.attempt:
            return ()
        is_awaited = report.by_worker and (
            call.phase is CallPhase.RECOVERY_REQUIRED or call.is_awaited(WAITING_FOR_TASK)
        )
        is_ours = report.by_worker or call.node == self.epoch
        is_code = call.is_code and call.phase is CallPhase.REQUESTED
        if not (is_awaited or is_code or (call.phase is CallPhase.INTENDED and is_ours)):
            return ()
        outcome = report.outcome
        if outcome.error is not UNSET:
            status = status_of(outcome.error)
            duration_ms = outcome.duration_ms
            failed = facts.Failed(
                **call_fields(call), error=outcome.error, status=status, duration_ms=duration_ms
            )
            return (failed,)
        completed = facts.Completed(
            **call_fields(call),
            value=outcome.value,
            value_blob=outcome.value_blob,
            response_digest=report.response_digest,
            duration_ms=outcome.duration_ms,
            sealed=outcome.sealed,
        )
        return (completed,)

    def retry(self, state: SessionCalls, operation_id: str, by: str) -> facts.RetryAllowed:
        """One more attempt of a call that has returned a value, which hook ``by`` requests."""
        call = state.calls.get(operation_id)
        if call is None or call.phase is not CallPhase.ENDED or not call.may_retry:
            raise Refused("GUARD_REJECTED", f"call {operation_id} may not be made once more")
        return facts.RetryAllowed(**call_fields(call), resolved_by=by, by_hook=True)

    # --- rules ------------------------------------------------------------------------------------

    def is_offered(self, call: ToolCall) -> bool:
        """Whether this node offers the tool with the schema the call was checked against."""
        tool = self.catalogue.get(call.name)
        return (
            tool is not None
            and tool.surface == call.surface
            and tool.available.schema_digest == call.schema_digest
            and (call.approval is not UNSET or not tool.requires_approval)
        )

    def is_orphaned(self, call: ToolCall) -> bool:
        """Whether another process intended the call and no outcome is recorded."""
        return call.phase is CallPhase.INTENDED and call.node != self.epoch

    def intended_attempts(self, state: SessionCalls) -> list[CallAttempt]:
        """The attempts this process has intended."""
        calls = state.calls.values()
        return [
            c.current_attempt
            for c in calls
            if c.phase is CallPhase.INTENDED and c.node == self.epoch
        ]

    def _may_act_until_ms(self, call: ToolCall, now_ms: int) -> int:
        """Avoids comparing the clocks of two processes. The other process calls no tools any more,
        so its call has at most its whole timeout left."""
        if call.node == self.epoch:
            return acts_until_ms(call)
        return max(now_ms + call.timeout_ms + _grace_ms(call), call.unknown_until_ms or 0)

    def _end_orphan(self, call: ToolCall, now_ms: int) -> facts.Failed | facts.RecoveryRequired:
        """The end of an orphaned call whose run has ended."""
        text = _unknown_reason(
            call, AttemptLost(operation_id=call.operation_id, attempt=call.attempt)
        )
        if call.idempotent:
            return cancelled_call(call, text)
        until_ms = self._may_act_until_ms(call, now_ms)
        return recovery_required(call, f"{text}, and the tool is not idempotent", until_ms)

    def _missing_right(self, session: str, call: ToolCall, now_ms: int) -> ToolFault | UnsetType:
        """The fault of a requested call that the rights no longer cover, that the run has no
        capacity for, or that the node's policy denies now."""
        tool = self.catalogue.get(call.name)
        try:
            if tool is not None and self.rights:
                tool.require_right(self.rights, session, call, now_ms, ordinal=call.ordinal)
            if tool is not None and tool.agent is not None:
                self.capacity.reserve(tool.agent)
        except Refused as refusal:
            return fault_of(refusal)
        return UNSET if tool is None else ask_policy(self.policy_now, tool, call).fault

    def _closed_fault(self, call: ToolCall) -> ToolFault | UnsetType:
        """The fault of a requested call whose surface takes no calls any more."""
        return self._fault_of_surface(call.surface, self.catalogue.get(call.name))

    def _fault_of_surface(self, surface: str, tool: CatalogueTool | None) -> ToolFault | UnsetType:
        code = self.closed.get(surface, "")
        if not code and self.catalogue.is_removed(surface):
            code = "SURFACE_UNAVAILABLE"
        if not code or (tool is not None and tool.waits_for):  # The node itself waits.
            return UNSET
        return closed_fault(surface, code)

    def require_visible(self, name: str) -> CatalogueTool:
        """The tool, if the run sees it, and if its surface takes the call. A surface that was added
        since the run started gives the run nothing."""
        tool = self.catalogue.get(name)
        if tool is not None and self.catalogue.is_own(name):
            if (wrong := self._fault_of_surface(tool.surface, tool)) is not UNSET:
                raise Refused(wrong.code, wrong.message)
            return tool
        seen = self.visible.get(name)
        if seen is None:
            self.catalogue.require(name)
            raise Refused(
                "UNKNOWN_TOOL", f"the run has no tool {name[:80]!r}", hint="list_tools() says which"
            )
        if seen.surface in self.closed:
            wrong = closed_fault(seen.surface, self.closed[seen.surface])
            raise Refused(wrong.code, wrong.message)
        if tool is None or tool.surface != seen.surface:
            raise Refused("SURFACE_UNAVAILABLE", f"{seen.surface} was removed, and {name} with it")
        if tool.available.schema_digest != seen.available.schema_digest:
            raise Refused(
                "SURFACE_UNAVAILABLE",
                f"{name} of {seen.surface} has other schemas than when the run started",
                hint="the next run has them",
            )
        return tool

    def _admit(self, requested: RequestedCall) -> CatalogueTool:
        """Check a call before its request. Sealed arguments, and those in the blob store, are
        checked when they are fetched."""
        tool = self.require_visible(requested.name)
        if requested.arguments is not UNSET and tool.can_check(requested):
            tool.check_arguments(requested.arguments)
        elif tool.waits_for:
            raise Refused("INVALID_ARGUMENT", f"the arguments of {requested.name} are too large")
        return tool

    def _intent(
        self, session: str, call: ToolCall, now_ms: int, inherited: Mapping[int, int] = NO_WAITS
    ) -> tuple[facts.IntentRecorded | facts.Awaited] | tuple[()]:
        """The intent of the call, or its wait for what ends it or for a fresh credential; nothing
        if it has to wait for a slot."""
        if call.approval is not UNSET and not call.grant_id:
            return ()
        tool = self.catalogue.get(call.name)
        if tool is not None and tool.waits_for:
            place = session, self.capacity
            return (begin_wait(call, tool, call.arguments, inherited, place, now_ms=now_ms),)
        if (wait := credential_wait(call, tool, self.lease_gate)) is not None:
            return (wait,)
        if not self.slots.try_reserve(call.next_attempt, session, call.name, now_ms):
            return ()
        intent = facts.IntentRecorded(
            **call_fields(call),
            attempt=call.attempt + 1,
            node=self.epoch,
            deadline_at_ms=now_ms + call.timeout_ms,
            grant_id=call.grant_id,
        )
        return (intent,)


# --- facts ----------------------------------------------------------------------------------------


def closed_fault(surface: str, code: str) -> ToolFault:
    """Why a surface takes no call."""
    is_draining = code == "SURFACE_DRAINING"
    return fault(code, f"{surface} is being removed" if is_draining else f"{surface} was removed")


def _may_begin(call: ToolCall) -> bool:
    """Whether an attempt or a fault of its arguments may end what the call waits for."""
    return call.phase is CallPhase.REQUESTED or call.is_awaited(WAITING_FOR_APPROVAL)


def acts_until_ms(call: ToolCall) -> int:
    """Until when the tool may still act on an intended call, by the clock of the process that
    intended it. Workers have a grace period. A function that ignores its deadline is not
    covered."""
    ends_ms = call.deadline_at_ms + _grace_ms(call)
    return max(ends_ms, call.task_until_ms, call.unknown_until_ms or 0)


def _grace_ms(call: ToolCall) -> int:
    return 0 if ends_with_node(call.surface) else GRACE_MS


def _unknown_reason(call: ToolCall, report: AttemptLost) -> str:
    node = call.node.rpartition(".")[0] or call.node
    ended = ", which has ended," if report.gone else ""
    text = report.reason or f"it is unknown whether {node}{ended} called the tool"
    return f"{text}; {report.worker_report}" if report.worker_report else text
