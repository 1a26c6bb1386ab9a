"""Laws of children: budgets sum, rights are a part, one call has one child."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from rookery.actors.protection.checks import CallSubject, missing_right
from rookery.actors.tools.agents.child_capacity import ChildCapacity, child_session
from rookery.schemas.agent_tools import AgentView
from rookery.schemas.agents import AgentLimits, ModelBudget
from rookery.schemas.errors import Refused
from rookery.schemas.facts.tool import Awaited
from rookery.schemas.protection.rights import Rights, SideEffect, ToolRight, intersect

AMOUNTS = st.one_of(st.just(UNSET), st.integers(1, 10_000))
SHARES = st.floats(0.01, 1.0)


@st.composite
def agents(draw: st.DrawFn) -> AgentView:
    limits = AgentLimits(tokens=draw(AMOUNTS), cost_micro_usd=draw(AMOUNTS))
    return AgentView(name="a", limits=limits, share=draw(SHARES))


def reserve(capacity: ChildCapacity, agent: AgentView) -> ModelBudget | str:
    """What a call reserves, or the code of its refusal."""
    try:
        return capacity.reserve(agent)
    except Refused as refusal:
        return refusal.code


@given(
    budget=st.integers(0, 100_000),
    calls=st.lists(st.tuples(agents(), st.floats(0, 1)), max_size=40),
    children_max=st.integers(0, 40),
)
def test_what_children_have_and_have_used_is_never_more_than_the_budget(
    budget: int, calls: list[tuple[AgentView, float]], children_max: int
):
    """Each call reserves; some children end, and use a part of what they have."""
    used, open_, begun = 0, list[int](), 0
    for agent, part in calls:
        capacity = ChildCapacity(
            children=begun,
            children_max=children_max,
            left=ModelBudget(tokens=budget - used - sum(open_)),
        )
        reserved = reserve(capacity, agent)
        if isinstance(reserved, str):
            exceeded = begun >= children_max
            assert reserved == ("CHILDREN_EXCEEDED" if exceeded else "BUDGET_EXHAUSTED")
        else:
            assert isinstance(reserved.tokens, int)
            assert reserved.tokens >= 1
            awaited = Awaited(run="r", operation_id="o", code="c", reserved=reserved)
            after = capacity.after((awaited,))
            assert after.left.tokens == budget - used - sum(open_) - reserved.tokens >= 0
            begun += 1
            open_.append(reserved.tokens)
        if open_ and part > 0.5:
            used += int(open_.pop() * part)
        assert used + sum(open_) <= budget


@given(agents(), AMOUNTS, AMOUNTS)
def test_a_child_has_no_more_than_its_agent_and_its_part(agent: AgentView, left: Any, cost: Any):
    """Without a budget above it, the limits of the agent are all there is."""
    capacity = ChildCapacity(left=ModelBudget(tokens=left, cost_micro_usd=cost))
    reserved = reserve(capacity, agent)
    if isinstance(reserved, str):
        assert reserved == "BUDGET_EXHAUSTED"
        return
    pairs = [
        (reserved.tokens, left, agent.limits.tokens),
        (reserved.cost_micro_usd, cost, agent.limits.cost_micro_usd),
    ]
    for got, available, limit in pairs:
        assert (got is UNSET) == (available is UNSET and limit is UNSET)
        assert got is UNSET or available is UNSET or got <= available * agent.share
        assert got is UNSET or limit is UNSET or got <= limit


NAMES = st.sampled_from(["fetch", "send", "pay", "finder"])
EFFECTS = st.sampled_from(list(SideEffect))
TOOL_RIGHTS = st.builds(
    ToolRight,
    tool=st.one_of(st.just(""), NAMES),
    surface=st.just("local"),
    when=st.sampled_from(["", "args.n <= 5", "args.n > 2"]),
)
RIGHTS = st.builds(
    Rights,
    tools=st.one_of(st.just(UNSET), st.lists(TOOL_RIGHTS, max_size=3).map(tuple)),
    without=st.lists(TOOL_RIGHTS, max_size=2).map(tuple),
    side_effect=st.one_of(st.just(UNSET), EFFECTS),
    calls=st.one_of(st.just(UNSET), st.integers(0, 3)),
    until_ms=st.one_of(st.just(UNSET), st.integers(0, 100)),
)
SUBJECTS = st.builds(
    CallSubject,
    name=NAMES,
    surface=st.sampled_from(["local", "agents"]),
    side_effect=EFFECTS,
    idempotent=st.booleans(),
    session=st.just("s"),
    number=st.integers(1, 4),
    ordinal=st.integers(1, 4),
    arguments=st.builds(lambda n: {"n": n}, st.integers(0, 9)),
)


@given(st.lists(RIGHTS, max_size=3), RIGHTS, st.lists(SUBJECTS, max_size=8), st.integers(0, 100))
def test_what_a_child_may_call_its_parent_may_call(
    parent: list[Rights], agent: Rights, calls: list[CallSubject], now_ms: int
):
    of_parent = intersect(tuple(parent))
    of_child = intersect(of_parent, (agent,))
    for call in calls:
        if not missing_right(of_child, call, now_ms=now_ms):
            assert not missing_right(of_parent, call, now_ms=now_ms)
            assert not missing_right((agent,), call, now_ms=now_ms)


@given(st.lists(st.tuples(st.text(min_size=1), st.uuids().map(str)), unique=True, max_size=50))
def test_each_call_has_a_session_of_its_own(calls: list[tuple[str, str]]):
    names = {child_session(session, operation_id) for session, operation_id in calls}
    assert len(names) == len(calls)
    assert all(name.startswith("sub-") and len(name) == 24 for name in names)
