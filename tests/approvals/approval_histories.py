"""One session's approvals and calls, decided and executed in this process.

The deciders and the executor are the real ones. The test chooses the time, the order of effects,
and where between two questions of an effect the process crashes. After a crash every fact requests
its effects again, as in a successor that has lost its watermark.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET

from rookery.actors.approvals.decider import ApprovalsDecider
from rookery.actors.approvals.dispatchers.dispatchers import InboxDispatcher
from rookery.actors.approvals.dispatchers.protocol import Dispatcher
from rookery.actors.approvals.executor import ApprovalExecutor
from rookery.actors.approvals.state import ApprovalSettings, Approver, SessionApprovals
from rookery.actors.execution.run_execution import Resumptions
from rookery.actors.kernel.decider import Decider, Effect
from rookery.actors.messages import WithdrawApproval
from rookery.actors.tools.attempts.call_slots import CallSlots
from rookery.actors.tools.calls.call_rules import CallRules
from rookery.actors.tools.catalogue.catalogue import ApprovalSubject, approval_subject
from rookery.actors.tools.effects import (
    AskApproval,
    BeginCall,
    CancelApproval,
    ExecuteCall,
    PrepareCall,
)
from rookery.bus.ports import Timer
from rookery.schemas.approvals.records import DecideApproval
from rookery.schemas.calls import CallArguments, Capability, RequestedCall
from rookery.schemas.codec import FactCodec, encode_facts, encode_json
from rookery.schemas.digest import digest_json
from rookery.schemas.envelope import Command, Fact, fill_envelope
from rookery.schemas.errors import CodedError
from rookery.schemas.facts import approval
from rookery.schemas.ids import fact_id
from tests.tools.tool_fixtures import CallerDecider, RequestCalls, tools

__all__ = ["SESSION", "Crash", "History"]

SESSION = "s"
T = TypeVar("T")


class Crash(BaseException):
    """The process dies."""


class History:
    """The facts, effects and timers of one session."""

    def __init__(
        self,
        *capabilities: Capability,
        settings: ApprovalSettings | None = None,
        find_approver: Callable[[str], Approver | None] = lambda _: None,
        dispatchers: Iterable[Dispatcher] = (InboxDispatcher(),),
    ) -> None:
        self.now_ms = 1_000_000
        self.visible = tools(*capabilities)
        settings = settings or ApprovalSettings()
        declared = [tool.capability for tool in self.visible]
        places: Any = CallSlots(declared, None, None)  # type: ignore[arg-type]
        self.concerns: dict[str, Decider] = {
            "approval": ApprovalsDecider(settings, find_approver),
            "turn": CallerDecider(CallRules(self.visible, places, "n")),
        }
        self.states = {family: one.initial(SESSION) for family, one in self.concerns.items()}
        self.facts: list[Fact] = []
        """The facts of both families, in order."""
        self.pending: list[Effect] = []
        self.acts: list[tuple[str, CallArguments]] = []
        self.timers: dict[str, Timer] = {}
        self.inbox: deque[Command[Any]] = deque()
        """Commands that no node has processed yet, in order of arrival."""
        self.waiting: list[str] = []
        """The calls that the call notifier reported as waiting."""
        self.crash_in = 0
        """The process crashes before the question with this number."""
        self._counts = dict.fromkeys(self.concerns, 0)
        self._commands = 0
        self.acting = ApprovalExecutor(
            ask=self.ask,
            timers=self,
            dispatchers={one.name: one for one in dispatchers},
            notify_call=lambda known: self.waiting.append(known.operation_id),
            now_ms=lambda: self.now_ms,
            can_continue=_can_continue,
            resume_in_turn=Resumptions(lambda _: True).admit,
        )

    @property
    def approvals(self) -> SessionApprovals:
        state: SessionApprovals = self.states["approval"]
        return state

    def of(self, kind: type[T]) -> list[T]:
        """The facts of this kind, in order."""
        return [fact for fact in self.facts if isinstance(fact, kind)]

    # --- actors -----------------------------------------------------------------------------------

    def put(self, family: str, body: Any, command_id: str = "", verb: str = "inside") -> Any:
        """Process a command at once; its reply, or the error that refuses it."""
        return self._process(family, self._command(body, command_id, verb))

    def arrive(self, body: Any, command_id: str = "", verb: str = "decide") -> Command[Any]:
        """Add a command to the inbox of approvals."""
        command = self._command(body, command_id, verb, arrived_ms=self.now_ms)
        self.inbox.append(command)
        return command

    def process_inbox(self) -> None:
        """Process the commands in the inbox, as a running node does."""
        while self.inbox:
            self._process("approval", self.inbox.popleft())

    def _command(self, body: Any, command_id: str, verb: str, **more: int) -> Command[Any]:
        self._commands += 1
        name = command_id or f"c{self._commands}"
        return Command(verb=verb, key=SESSION, id=name, body=body, reply_to="r", **more)

    def _process(self, family: str, command: Command[Any]) -> Any:
        concern = self.concerns[family]
        try:
            facts = concern.decide(self.states[family], command, now_ms=self.now_ms)
        except CodedError as error:
            return error
        for fact in facts:
            self._commit(family, fact, command.id)
        said = concern.reply(self.states[family], command, facts)
        for fact in facts:
            self.react(family, fact)
        return said

    def react(self, family: str, fact: Fact) -> None:
        """Let the other family react to a committed fact."""
        for other, concern in self.concerns.items():
            if family in concern.reacts_to and type(fact) in concern.reaction_types:
                self._process(other, Command(verb=family, key=SESSION, id=fact.id, body=fact))

    def _commit(self, family: str, fact: Fact, cause: str) -> None:
        self._counts[family] += 1
        fill_envelope(
            fact,
            id=fact_id(family, SESSION, self._counts[family]),
            at_ms=self.now_ms,
            session=SESSION,
            cause=(cause,),
            cause_digest="",
            source="test",
            traceparent="",
        )
        concern = self.concerns[family]
        (stored,) = FactCodec[Any](type(fact)).decode(encode_facts([fact]))
        assert stored == fact
        self.states[family] = concern.evolve(self.states[family], stored)
        self.facts.append(stored)
        self.pending += concern.effects(self.states[family], stored)

    async def ask(self, family: str, key: str, body: msgspec.Struct, answer: type[T]) -> T:
        """Ask an actor for an effect: the port ``AskActor``."""
        assert key == SESSION
        self.crash_in -= 1
        if self.crash_in == 0:
            raise Crash
        said = self.put(family, body)
        if isinstance(said, CodedError):
            raise said
        return msgspec.json.decode(encode_json(said), type=answer)

    # --- effects ----------------------------------------------------------------------------------

    def perform(self, effect: Effect) -> None:
        """Perform an effect to its end, or until the process crashes."""
        self.pending.remove(effect)
        try:
            asyncio.run(self._perform(effect))
        except Crash:
            self.crash()

    async def _perform(self, effect: Any) -> None:
        if performer := self.acting.handlers.get(type(effect)):
            await performer(effect)
            return
        match effect:
            case AskApproval(call=call):
                tool = self.visible.require(call.name)
                assert call.arguments is not UNSET
                found = approval_subject(tool, call, call.arguments)
                assert isinstance(found, ApprovalSubject)
                self.put("approval", found.request)
            case CancelApproval(operation_id=operation_id):
                self.put("approval", WithdrawApproval(operation_id=operation_id))
            case PrepareCall(call=call):
                self.put("turn", BeginCall(operation_id=call.operation_id))
            case ExecuteCall(call=call):
                assert call.arguments is not UNSET
                self.acts.append((call.operation_id, call.arguments))

    def settle(self) -> None:
        """Perform all pending effects."""
        while self.pending:
            self.perform(self.pending[0])

    def crash(self) -> None:
        """Drop the effects in progress; a successor requests the pending ones again."""
        self.crash_in = 0
        self.pending = []
        for family, concern in self.concerns.items():
            state = concern.load(concern.dump(self.states[family]))
            self.states[family] = state
            for fact in self.facts:
                if fact.id.startswith(f"{family}."):
                    self.pending += concern.effects(state, fact)
        for fact in tuple(self.facts):
            self.react(fact.id.partition(".")[0], fact)

    # --- timers -----------------------------------------------------------------------------------

    async def arm(self, timer: Timer) -> None:
        self.timers[timer.id] = timer

    async def cancel(self, timer_id: str) -> None:
        self.timers.pop(timer_id, None)

    def pass_ms(self, milliseconds: int) -> None:
        """Advance the time; timers fire and a node processes them."""
        self.pass_unwatched_ms(milliseconds)
        self.process_inbox()

    def pass_unwatched_ms(self, milliseconds: int) -> None:
        """Advance the time without a node; fired timers wait in the inbox."""
        self.now_ms += milliseconds
        due = [timer for timer in self.timers.values() if timer.due_ms <= self.now_ms]
        for timer in sorted(due, key=lambda timer: timer.due_ms):
            del self.timers[timer.id]
            concern = self.concerns["approval"]
            body = msgspec.json.decode(timer.body, type=concern.verbs[timer.verb])
            self.arrive(body, f"timer/{timer.id}/{timer.due_ms}", timer.verb)

    # --- approvers and programs -------------------------------------------------------------------

    def call(self, number: int, name: str, run: str = "run-1", **arguments: Any) -> str:
        """Request a call, as a turn does; the operation id."""
        operation_id = f"{run}-{number}"
        given = CallArguments(kwargs=arguments)
        asked = RequestedCall(
            operation_id=operation_id,
            number=number,
            name=name,
            digest=digest_json(given),
            arguments=given,
        )
        self.put("turn", RequestCalls(run=run, calls=(asked,)), verb="request")
        return operation_id

    def end(self, run: str = "run-1") -> None:
        """End the run."""
        self.put("turn", RequestCalls(run=run), verb="end")

    def asked(self, operation_id: str) -> approval.Requested:
        """The latest approval request for the call."""
        return [one for one in self.of(approval.Requested) if one.operation_id == operation_id][-1]

    def answer_to(self, operation_id: str, decision: str = "approved", **more: Any) -> Any:
        """The answer that an approver sends to the latest request."""
        asked = self.asked(operation_id)
        said = {
            "approval_id": asked.approval_id,
            "decision": decision,
            "actor": "ann",
            "request_digest": asked.request_digest,
        }
        return DecideApproval(**(said | more))

    def decide(self, operation_id: str, decision: str = "approved", **more: Any) -> Any:
        """Send an approver's answer; its reply."""
        return self.put("approval", self.answer_to(operation_id, decision, **more), verb="decide")


async def _can_continue(_session: str, _run_id: str) -> bool:
    """Every run waits for its calls."""
    return True
