"""The effects of the turns, performed by ``RunExecutor``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import UNSET, UnsetType
from msgspec.structs import asdict, replace

from rookery.actors.kernel import Effect
from rookery.actors.messages import ActiveRunView, ReportChildEnded, ReportItemHandled
from rookery.actors.tools.agents import ChildCapacity
from rookery.actors.tools.catalogue import CatalogueTool, ToolCatalogue
from rookery.actors.tools.effects import AwaitChild, AwaitPeer
from rookery.actors.tools.state import CallPhase, ToolCall
from rookery.actors.turn_inputs import external_result
from rookery.schemas.agent_tools import DETACH, AgentView, RunChild
from rookery.schemas.agents import RUN_CODE, ModelBudget, ModelLimits, ModelUsage, ParentRun
from rookery.schemas.calls import RequestedCall
from rookery.schemas.facts import turn as facts
from rookery.schemas.machines.turn import TurnPhase
from rookery.schemas.protection.rights import Rights, ToolRight, after_calls, intersect
from rookery.schemas.run import RunLimits, RunRequest, RunResult

if TYPE_CHECKING:
    from rookery.actors.turns.evolve import End
    from rookery.actors.turns.state import ActiveRun, SessionTurns

__all__ = [
    "ContinueRun",
    "ExecuteRun",
    "InvokeCancelHooks",
    "ReportTurnOver",
    "SendInterim",
    "SendResult",
    "SendStoredResult",
    "StopRun",
    "child_capacity",
    "end_reports",
    "execution_effect",
    "with_children",
    "with_items",
]


class ExecuteRun(Effect, frozen=True, kw_only=True):
    """Execute the run until it ends or parks."""

    session: str
    view: ActiveRunView
    """The run's progress."""
    is_resumption: bool = False
    """A hook had interrupted the run, and maybe many others that go on now, too."""


class ContinueRun(Effect, frozen=True, kw_only=True):
    """Continue the run from its recorded progress, unless it is being executed."""

    session: str
    run_id: str


class ReportTurnOver(Effect, frozen=True, kw_only=True):
    """Tell the session that its run has ended, in case it does not know yet."""

    session: str
    run_id: str


class SendResult(Effect, frozen=True, kw_only=True):
    """Send the result of an ended run to its clients. A repetition is harmless."""

    is_instant = True
    session: str
    run_id: str
    reply_to: tuple[str, ...]
    result: RunResult


class SendStoredResult(SendResult, frozen=True, kw_only=True):
    """The same for a large result: ``result`` is a part of it, the blob store has the whole."""

    is_instant = False
    result_blob: str


class SendInterim(Effect, frozen=True, kw_only=True):
    """Tell the waiting client what its run waits for."""

    session: str
    run_id: str
    code: str
    snapshot_id: str
    calls: tuple[RequestedCall, ...]
    """The calls it waits for."""
    reply_to: tuple[str, ...]
    """Reply subjects of the clients that wait on the connection."""
    hook: str = ""
    """The hook that has interrupted it."""


class InvokeCancelHooks(Effect, frozen=True, kw_only=True):
    """Invoke the hooks of a run that was cancelled; nothing waits for them."""

    session: str
    view: ActiveRunView


class StopRun(Effect, frozen=True, kw_only=True):
    """End the run now."""

    session: str
    run_id: str


def with_items(state: SessionTurns, effects: Sequence[Effect]) -> Sequence[Effect]:
    """The effects; those of calls to peers with the item of a peer that their run handles."""
    if AwaitPeer not in map(type, effects):
        return effects
    return [
        replace(effect, item_id=_item_of(state, effect.call.run))
        if isinstance(effect, AwaitPeer)
        else effect
        for effect in effects
    ]


def _item_of(state: SessionTurns, run_id: str) -> str:
    requested = state.asked.get(run_id)
    return "" if requested is None or requested.item_id is UNSET else requested.item_id


def execution_effect(
    fact: facts.PrimitiveApplied | facts.Unparked, view: ActiveRunView
) -> ExecuteRun:
    """The execution of a run that has started, or goes on."""
    is_resumption = isinstance(fact, facts.Unparked) and fact.hook is not UNSET
    return ExecuteRun(
        key=f"drive/{fact.id}", session=fact.session, view=view, is_resumption=is_resumption
    )


def end_reports(end: End) -> Sequence[Effect]:
    """What others get of the end of a run: the peer whose item it handled, or its parent."""
    left: list[Effect] = [] if end.item_id is UNSET else [_report_handled(end, end.item_id)]
    if end.parent is not UNSET:
        left.append(_report_child(end, end.parent))
    return left


def _report_handled(end: End, item_id: str) -> Effect:
    return ReportItemHandled(
        key=f"item/{end.id}",
        session=end.session,
        run_id=end.run,
        item_id=item_id,
        result=external_result(TurnPhase.FAILED) if end.result is UNSET else end.result,
        result_blob=end.result_blob or "",
    )


def _report_child(end: End, parent: ParentRun) -> Effect:
    result = external_result(TurnPhase.FAILED) if end.result is UNSET else end.result
    return ReportChildEnded(
        key=f"child/{end.id}",
        session=end.session,
        run_id=end.run,
        parent=parent,
        result=result,
        result_blob=end.result_blob or "",
        usage=(result.usage or ModelUsage()).plus(end.child_usage or ModelUsage()),
    )


# --- children -------------------------------------------------------------------------------------

# The children of a session's runs: what a run may give to the agents that it calls, and the command
# by which each of them runs in a session of its own. Pure.
#
# Whatever a child gets is a part of what its parent has: its rights are those of the parent and
# those of its agent together, its budgets are reserved from the parent's, its depth is one more.


def child_capacity(state: SessionTurns, run: ActiveRun) -> ChildCapacity:
    """What the run may give to agents now."""
    own, limits = ChildCapacity(), run.request.limits
    model = ModelLimits() if run.offer.model is UNSET else run.offer.model.limits
    calls = state.calls.calls_of_run(run.run_id)
    calls = [call for call in calls if call.reserved is not UNSET]
    return ChildCapacity(
        depth=_depth(run),
        depth_max=_least(own.depth_max, model.depth, UNSET if limits is None else limits.depth),
        children=len(calls),
        children_max=_least(
            own.children_max, model.children, UNSET if limits is None else limits.children
        ),
        left=_left(state, run, model, [call for call in calls if call.phase is CallPhase.AWAITED]),
    )


def _depth(run: ActiveRun) -> int:
    parent = run.request.parent
    return 0 if parent is UNSET else parent.depth


def _least(default: int, *limits: int | UnsetType) -> int:
    named = [limit for limit in limits if limit is not UNSET]
    return min(named) if named else default


def _left(
    state: SessionTurns, run: ActiveRun, limits: ModelLimits, waiting: Sequence[ToolCall]
) -> ModelBudget:
    """What nothing has used or reserved, of the run's budgets and of those of its session."""
    used = (run.usage or ModelUsage()).plus(run.child_usage or ModelUsage())
    of_session = state.model_usage or ModelUsage()
    parts = [call.reserved for call in waiting if call.reserved is not UNSET]
    tokens = sum(part.tokens or 0 for part in parts)
    cost = sum(part.cost_micro_usd or 0 for part in parts)
    return ModelBudget(
        tokens=_rest(
            (limits.tokens, used.tokens + tokens),
            (limits.session_tokens, of_session.tokens + tokens),
        ),
        cost_micro_usd=_rest(
            (limits.cost_micro_usd, used.micro_usd + cost),
            (limits.session_cost_micro_usd, of_session.micro_usd + cost),
        ),
    )


def _rest(*budgets: tuple[int | UnsetType, int]) -> int | UnsetType:
    """The least that is left of budgets with what is taken from each."""
    left = [max(0, limit - taken) for limit, taken in budgets if limit is not UNSET]
    return min(left) if left else UNSET


def with_children(
    state: SessionTurns, effects: Sequence[Effect], catalogue: ToolCatalogue
) -> Sequence[Effect]:
    """The effects; those of calls that wait for an agent with the command for its session. A node
    that has not the agent leaves them to another one."""
    if AwaitChild not in map(type, effects):
        return effects
    return [
        replace(effect, child=_child_of(state, effect, catalogue.get(effect.call.name)))
        if isinstance(effect, AwaitChild)
        else effect
        for effect in effects
    ]


def _child_of(
    state: SessionTurns, effect: AwaitChild, tool: CatalogueTool | None
) -> RunChild | UnsetType:
    call, run = effect.call, state.driving
    if run is None or run.run_id != call.run or tool is None or tool.agent is None:
        return UNSET
    assert call.arguments is not UNSET
    inputs = tool.checks.check_arguments(call.arguments.args, call.arguments.kwargs)
    is_detached = inputs.pop(DETACH, False) is True
    parent, agent, reserved = run.request.parent, tool.agent, call.reserved or ModelBudget()
    above = () if parent is UNSET else parent.agents
    capacity = child_capacity(state, run)
    request = RunRequest(
        agent=agent.name,
        inputs=inputs,
        limits=RunLimits(
            **asdict(run.offer.limits),
            tokens=reserved.tokens,
            cost_micro_usd=reserved.cost_micro_usd,
            depth=capacity.depth_max,
        ),
        rights=_rights(tool, agent),
        parent=ParentRun(
            session=effect.session,
            run_id=run.run_id,
            operation_id=call.operation_id,
            depth=capacity.depth + 1,
            agents=(*above, agent.name),
            detached=is_detached,
        ),
    )
    origins = state.rights.origins_of("")
    rights = intersect(run.rights, state.rights.rights)
    return RunChild(
        request=request,
        rights=after_calls(rights, state.calls.requested),
        descends_from=tuple(sorted({effect.session, *origins})),
    )


def _rights(tool: CatalogueTool, agent: AgentView) -> Rights:
    """What the run of an agent may call at most: the tools that it names, or all but agents."""
    if agent.tools is UNSET:
        return Rights(without=(ToolRight(surface=tool.surface),))
    return Rights(tools=tuple(ToolRight(tool=one) for one in agent.tools if one != RUN_CODE))
