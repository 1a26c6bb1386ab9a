"""The executor of children: lets sessions run the agents that calls wait for, and ends those calls.

Both ways are durable commands that no client can send: to the session of the child, which runs the
agent once, and back to the session of the parent, whose call ends once. So every effect may be
performed again, on any node, after a crash of either. Runs on the bus's loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import UNSET

from rookery.actors.kernel import Effect
from rookery.actors.kernel.executors import EffectHandler, Failpoints, NotExecutableHere
from rookery.actors.messages import ReportChildEnded
from rookery.actors.tools.agents.child_capacity import child_session
from rookery.actors.tools.effects import AwaitChild, CancelChild
from rookery.bus.ports import IN_FACT_BYTES_MAX, Blobs, Timer, Timers, at_once_ms
from rookery.schemas.agent_tools import RunChild
from rookery.schemas.agents import ModelBudget, ModelUsage, ParentRun
from rookery.schemas.calls import WAITING_FOR_AGENT, CallOutcome, ToolFault
from rookery.schemas.codec import encode_json
from rookery.schemas.commands import AppendMessage, WaitEnded
from rookery.schemas.digest import canonical_json
from rookery.schemas.run import RunRequest, RunResult, RunStatus

__all__ = ["ChildExecutor"]

FAULT_CHARS_MAX: Final = 2_000
MESSAGE_CHARS_MAX: Final = 4_000
"""Of the end of a detached run; ``runs result`` has the whole."""


@dataclass(kw_only=True)
class ChildExecutor:
    """One per node that executes runs."""

    timers: Timers
    blobs: Blobs
    now_ms: Callable[[], int]
    failpoints: Failpoints

    @property
    def handlers(self) -> dict[type[Effect], EffectHandler]:
        return {
            AwaitChild: self.start,
            CancelChild: self.cancel,
            ReportChildEnded: self.report_end,
        }

    async def start(self, effect: AwaitChild) -> None:
        """Let the session of the call run its agent."""
        if effect.child is UNSET:
            raise NotExecutableHere(f"this node has no agent {effect.call.name}")
        self.failpoints.hit("child_starting")
        await self._command(effect.session, effect.call.operation_id, effect.child)
        self.failpoints.hit("child_started")
        parent = effect.child.request.parent
        if parent is not UNSET and parent.detached:
            await self._end_detached(effect, parent)

    async def cancel(self, effect: CancelChild) -> None:
        """End the run of the agent; one that has not begun never does."""
        call = effect.call
        parent = ParentRun(session=effect.session, run_id=call.run, operation_id=call.operation_id)
        request = RunRequest(agent=call.name, parent=parent)
        self.failpoints.hit("child_cancelling")
        withdrawn = RunChild(request=request, withdrawn=True)
        await self._command(effect.session, call.operation_id, withdrawn)

    async def report_end(self, effect: ReportChildEnded) -> None:
        """End the call that waits for the run; if none does, let the session know."""
        self.failpoints.hit("child_ended")
        outcome = await self._outcome(effect.result, effect.result_blob)
        if effect.parent.detached:
            await self._send_end(effect, outcome)
        else:
            await self._end_call(effect.parent, outcome, effect.usage)
        self.failpoints.hit("child_reported")

    async def _end_detached(self, effect: AwaitChild, parent: ParentRun) -> None:
        """End the call of a detached run: all that is reserved for it counts as used."""
        session = child_session(effect.session, parent.operation_id)
        reserved = effect.call.reserved or ModelBudget()
        used = ModelUsage(
            maybe_paid_tokens=reserved.tokens or 0,
            maybe_paid_micro_usd=reserved.cost_micro_usd or 0,
        )
        await self._end_call(parent, CallOutcome(value={"session": session}), used)

    async def _end_call(self, parent: ParentRun, outcome: CallOutcome, usage: ModelUsage) -> None:
        ended = WaitEnded(
            operation_id=parent.operation_id, code=WAITING_FOR_AGENT, outcome=outcome, usage=usage
        )
        await self._arm("child_end", parent.operation_id, "wait_ended", parent.session, ended)

    async def _send_end(self, effect: ReportChildEnded, outcome: CallOutcome) -> None:
        """A message to the session whose run has called the agent; that run may have ended."""
        parent, error = effect.parent, outcome.error
        shown: Any = outcome.value if outcome.value_blob is UNSET else f"blob:{outcome.value_blob}"
        text = encode_json(shown).decode() if error is UNSET else f"{error.code}: {error.message}"
        said = f"The agent {parent.agents[-1]} in {effect.session} has ended: {text}"
        message = AppendMessage(text=said[:MESSAGE_CHARS_MAX])
        await self._arm("child_message", parent.operation_id, "append", parent.session, message)

    async def _command(self, session: str, operation_id: str, child: RunChild) -> None:
        kind = "child_cancel" if child.withdrawn else "child_start"
        key = child_session(session, operation_id)
        await self._arm(kind, operation_id, "child", key, child)

    async def _arm(
        self, kind: str, operation_id: str, verb: str, key: str, body: msgspec.Struct
    ) -> None:
        """Send a durable command, by a timer that is due."""
        timer = Timer(
            id=f"{kind}.{operation_id}",
            due_ms=at_once_ms(self.now_ms()),
            verb=verb,
            key=key,
            body=encode_json(body),
        )
        await self.timers.arm(timer)

    async def _outcome(self, result: RunResult, blob: str) -> CallOutcome:
        """What the call of the parent has: the result, or why there is none."""
        if result.status is not RunStatus.OK:
            code = result.status.upper() if result.error is None else result.error.code
            why = f"the run is {result.status}" if result.error is None else result.error.message
            return CallOutcome(error=ToolFault(code, why[:FAULT_CHARS_MAX]))
        value: Any = result.result
        if blob:
            whole = msgspec.json.decode(await self.blobs.get(blob), type=RunResult)
            value = whole.result
        text = canonical_json(value)
        if len(text) > IN_FACT_BYTES_MAX:
            return CallOutcome(value_blob=await self.blobs.put(text))
        return CallOutcome(value=value)
