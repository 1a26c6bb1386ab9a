"""Observers: hooks for which no run waits. A node feeds them from the facts that it has committed.

Each observer has a bounded queue, of which a part is reserved for what ended: calls and runs. The
coordinator invokes it, and judges its answer by the same matrix and rights as any. If the queue
is full, the hook's overflow policy decides. An observer sees a fact once at most: what is queued
when its node dies is lost, and so is an event whose invocation fails. An application that needs
every fact follows the journal.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from msgspec import UNSET

from rookery.actors.hooks.executors.ports import HookExecutors
from rookery.actors.hooks.executors.rule import is_skipped
from rookery.actors.hooks.node_hooks import NodeHooks
from rookery.actors.hooks.points.coordinator import HookLifecycleCoordinator
from rookery.actors.hooks.points.records import (
    HookInvocationStatus,
    HookLifecycleContext,
    agent_source,
)
from rookery.actors.protection.approval_rules import RuleInput
from rookery.bus.ports import TaskSet
from rookery.schemas.envelope import Fact
from rookery.schemas.errors import Refused
from rookery.schemas.facts import approval, model, tool, turn
from rookery.schemas.hooks import HookRegistration
from rookery.schemas.ids import AgentId, JournalCursor, RunId, SessionId, ToolCallId, TurnId
from rookery.schemas.seed.agent_error import AgentError
from rookery.schemas.seed.hook import HookPoint
from rookery.schemas.seed.hook_invocation import SUMMARY_MAX, HookView
from rookery.schemas.seed.hook_spec import (
    HookOverflowPolicy,
    HookPrivacyPolicy,
    HookSpec,
    NonBlockingHook,
)
from rookery.schemas.seed.package import RuntimePackageFingerprint
from rookery.schemas.seed.records import JournalRecord
from rookery.schemas.seed.refs import EntityKind, EntityRef, PrivacyClass

__all__ = ["HookObservers", "ObserverCounts"]

log = logging.getLogger(__name__)

NAMES_MAX: Final = 10_000
"""Calls whose tools are known by name; a call is requested shortly before it ends."""


class _Event(NamedTuple):
    """What an observer gets."""

    point: HookPoint
    run: str
    session: str
    summary: str
    content: Any
    operation_id: str = ""
    name: str = ""
    is_end: bool = False
    """Whether something has ended: it may use the reserve of a queue."""


class ObserverCounts(NamedTuple):
    """Of one observer on this node, since it started."""

    queued: int = 0
    invoked: int = 0
    dropped: int = 0
    """Events that it did not get, or that only a summary counts."""
    failed: int = 0


class _Observer:
    """The queue of one hook, and the task that empties it."""

    def __init__(
        self,
        registration: HookRegistration,
        executors: HookExecutors,
        now_ms: Callable[[], int],
    ) -> None:
        self.registration, self._executors, self._now_ms = registration, executors, now_ms
        assert isinstance(registration.spec.execution, NonBlockingHook)
        self._execution = registration.spec.execution
        self._events: deque[_Event] = deque()
        self._skipped = 0
        """Events after the queued ones, of which only the last is known."""
        self._last: _Event | None = None
        self.invoked = self.dropped = self.failed = 0
        self._is_running = False

    @property
    def counts(self) -> ObserverCounts:
        queued = len(self._events) + (self._last is not None)
        return ObserverCounts(queued, self.invoked, self.dropped, self.failed)

    def put(self, event: _Event, tasks: TaskSet) -> None:
        queue = self._execution.queue
        room = queue.capacity - (0 if event.is_end else queue.terminal_reserve)
        if len(self._events) < room and self._last is None:
            self._events.append(event)
        else:
            self._overflow(event)
        if not self._is_running:
            self._is_running = True
            tasks.start(self._run())

    def _overflow(self, event: _Event) -> None:
        match self._execution.overflow:
            case HookOverflowPolicy.DROP_OBSERVE_ONLY:
                self.dropped += 1
            case HookOverflowPolicy.SUMMARIZE_AND_CONTINUE:
                if self._last is not None:
                    self._skipped, self.dropped = self._skipped + 1, self.dropped + 1
                self._last = event
            case HookOverflowPolicy.FAIL_HOOK_INVOCATION:
                self.failed += 1
                hook = self.registration.spec.hook_id.as_str()
                log.error("the queue of an observer is full", extra={"hook": hook})

    async def _run(self) -> None:
        """Invoke the hook for all that is queued."""
        try:
            while (event := self._next()) is not None:
                await self._invoke(event)
        finally:
            self._is_running = False

    def _next(self) -> _Event | None:
        if self._events:
            return self._events.popleft()
        if self._skipped and self._last is not None:
            skipped, self._skipped = self._skipped, 0
            summary = f"{skipped} events skipped"
            return self._last._replace(summary=summary, content=UNSET, operation_id="", name="")
        last, self._last = self._last, None
        return last

    async def _invoke(self, event: _Event) -> None:
        spec = self.registration.spec
        coordinator = HookLifecycleCoordinator(
            self._executors, _NO_RECORDS, self.invoked + self.failed + 1, now_ms=self._now_ms
        )
        try:
            (outcome,) = await coordinator.invoke_point(
                (spec,), spec.point, _context(event), _view(spec, event)
            )
            why = "" if outcome.status is HookInvocationStatus.COMPLETED else outcome.status.value
        except Exception as error:  # Nothing waits for an observer.
            why = error.context.message if isinstance(error, AgentError) else repr(error)
        if why:
            self.failed += 1
            extra = {"hook": spec.hook_id.as_str(), "why": why[:200]}
            log.warning("observer failed", extra=extra)
        else:
            self.invoked += 1


class _NoRecords:
    """The port ``RunJournal``: what an observer answers is never accepted, so none is left."""

    async def append(self, record: JournalRecord) -> JournalCursor:
        raise Refused("HOOK_ANSWER_INVALID", f"an observer leaves no record {record.record_id}")


_NO_RECORDS: Final = _NoRecords()


class HookObservers:
    """One per node; used on the bus's loop."""

    def __init__(self, hooks: NodeHooks, now_ms: Callable[[], int]) -> None:
        self._hooks, self._tasks, self._now_ms = hooks, TaskSet(), now_ms
        self._registered: Sequence[HookRegistration] = ()
        self._observers: dict[str, _Observer] = {}
        self._points: frozenset[HookPoint] = frozenset()
        self._names: OrderedDict[tuple[str, str], str] = OrderedDict()

    def on_committed(self, facts: Sequence[Fact]) -> None:
        """Queue what observers see of the facts of one commit; quick, and nothing is raised."""
        if self._registered is not self._hooks.registrations:
            self._follow(self._hooks.registrations)
        if not self._points:
            return
        for fact in facts:
            if isinstance(fact, tool.Requested):
                self._note_name(fact)
            elif (view := _EVENTS.get(type(fact))) is not None:
                event = view(fact)
                name = self._names.get((event.session, event.operation_id), "")
                self._put(event._replace(name=name))

    @property
    def counts(self) -> Mapping[str, ObserverCounts]:
        """By hook."""
        return {name: one.counts for name, one in self._observers.items()}

    async def close(self) -> None:
        """Drop what is queued: the node stops."""
        await self._tasks.cancel()

    def _follow(self, registrations: Sequence[HookRegistration]) -> None:
        """Keep the queues of hooks that are as they were."""
        self._registered, earlier = registrations, self._observers
        self._observers = {}
        for one in registrations:
            if one.spec.is_blocking or not one.is_enabled:
                continue
            name = one.spec.hook_id.as_str()
            known = earlier.get(name)
            keeps = known is not None and known.registration == one
            self._observers[name] = (
                known if known and keeps else _Observer(one, self._hooks.executors, self._now_ms)
            )
        self._points = frozenset(one.registration.spec.point for one in self._observers.values())

    def _put(self, event: _Event) -> None:
        for observer in self._observers.values():
            one = observer.registration
            if one.spec.point is event.point and not is_skipped(one, _subject(event)):
                observer.put(event, self._tasks)

    def _note_name(self, fact: tool.Requested) -> None:
        self._names[fact.session, fact.operation_id] = fact.name
        if len(self._names) > NAMES_MAX:
            self._names.popitem(last=False)


# --- events ---------------------------------------------------------------------------------------


def _call_ended(fact: tool.Completed | tool.Failed) -> _Event:
    content: Any = UNSET
    if isinstance(fact, tool.Completed):
        what = f"returned a value in {fact.duration_ms} ms"
        if fact.sealed is not True and fact.value_blob is UNSET:
            content = fact.value
    else:
        what = f"failed: {fact.error.code}"
    return _Event(
        point=HookPoint.AFTER_TOOL_CALL,
        run=fact.run,
        session=fact.session,
        summary=f"call {fact.operation_id} {what}",
        content=content,
        operation_id=fact.operation_id,
        is_end=True,
    )


def _model_answered(fact: model.Answered) -> _Event:
    message = fact.message
    return _Event(
        point=HookPoint.AFTER_MODEL_CALL,
        run=fact.run,
        session=fact.session,
        summary=f"answer {fact.step} of a model, after {fact.duration_ms} ms",
        content=UNSET if message is UNSET else message.text,
    )


def _approval_ended(fact: approval.Answered | approval.Closed) -> _Event:
    words = fact.decision if isinstance(fact, approval.Answered) else fact.reason_code
    return _Event(
        point=HookPoint.AFTER_APPROVAL_DECISION,
        run=str(fact.run or ""),
        session=fact.session,
        summary=f"approval {fact.approval_id}: {words}",
        content=UNSET,
        operation_id=fact.operation_id,
    )


def _run_ended(fact: Any) -> _Event:
    result = fact.result
    status = "" if result is UNSET else f" with status {result.status}"
    kind = str(fact.__struct_config__.tag).partition(".")[2].removesuffix(".v1")
    return _Event(
        point=HookPoint.AFTER_RUN_TERMINAL,
        run=str(fact.run or ""),
        session=fact.session,
        summary=f"run {fact.run} {kind}{status}",
        content=UNSET if result is UNSET else result.result,
        is_end=True,
    )


_EVENTS: Final[Mapping[type[Fact], Callable[[Any], _Event]]] = {
    tool.Completed: _call_ended,
    tool.Failed: _call_ended,
    model.Answered: _model_answered,
    approval.Answered: _approval_ended,
    approval.Closed: _approval_ended,
    **dict.fromkeys((turn.Completed, turn.Failed, turn.Cancelled), _run_ended),
}


def _subject(event: _Event) -> RuleInput:
    """The variables of conditions; what an event does not say is undecided."""
    return RuleInput(
        name=event.name or UNSET,
        surface=UNSET,
        side_effect=UNSET,
        idempotent=UNSET,
        session=event.session,
        args=UNSET,
        counts=UNSET,
        point=event.point.value,
        result=event.content,
        run=UNSET,
    )


def _view(spec: HookSpec, event: _Event) -> HookView:
    subject = EntityRef.run(RunId(event.run))
    if event.operation_id:
        subject = EntityRef.new(EntityKind.TOOL_CALL, ToolCallId(event.operation_id))
    sees_content = spec.privacy is HookPrivacyPolicy.CONTENT_CAPTURE_ALLOWED
    name = f"{event.name}: " if event.name else ""
    return HookView(
        privacy=PrivacyClass.CONTENT_REFS_ONLY,
        redacted_summary=f"{name}{event.summary}"[:SUMMARY_MAX],
        subject_refs=(subject,),
        content=event.content if sees_content else UNSET,
    )


def _context(event: _Event) -> HookLifecycleContext:
    agent_id = AgentId(f"agent.{event.session}")
    return HookLifecycleContext(
        run_id=RunId(event.run),
        agent_id=agent_id,
        session_id=SessionId(event.session),
        turn_id=TurnId(f"turn.{event.run}"),
        source=agent_source(agent_id),
        package_fingerprint=RuntimePackageFingerprint("observed"),
    )
