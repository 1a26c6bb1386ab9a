"""Budgets are checked before a question is paid; lost answers count, no restart refills them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rookery.actors.execution.agents import ModelBudgets, open_models
from rookery.actors.execution.agents.models import NO_BUDGETS, KnownModel, Models
from rookery.actors.execution.models.budgets import exceeded_budget
from rookery.actors.projections.lists.model_usage import UsageProjection
from rookery.schemas.agents import (
    ConfiguredModel,
    ModelEstimate,
    ModelLimits,
    ModelPrice,
    ModelUsage,
)
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.facts import model
from rookery.schemas.run import RunLimits, RunRequest
from tests.agents.agent_world import AgentWorld, call, result_of, says, wants
from tests.agents.test_model_driver import another_node, check_lawful, rows
from tests.agents.test_model_retries import PATIENCE_S

PRICE = ModelPrice(input=10.0, output=100.0, cached=1.0)
USE = {"input_tokens": 100, "output_tokens": 10}
ENDLESS = [wants(call("fetch", a=n), usage=USE) for n in range(1, 12)]


class PricedWorld(AgentWorld):
    """Its models have a price, and its sessions may have a budget."""

    def __init__(self, *answers: dict[str, Any], budgets: ModelBudgets = NO_BUDGETS) -> None:
        super().__init__(*answers)
        known = KnownModel(
            ConfiguredModel(provider="scripted", model="test", price=PRICE),
            self.models.model("fast"),
        )
        self.models = Models({"fast": known}, "fast", budgets=budgets)


def test_a_price_is_of_fresh_and_cached_input_and_of_output():
    usage = ModelUsage(input_tokens=1_000, output_tokens=10, cached_tokens=400)
    assert PRICE.cost(usage) == 600 * 10 + 400 * 1 + 10 * 100


@pytest.mark.parametrize(
    ("limits", "asked"),
    [
        ({"tokens": 600}, 4),
        ({"cost_micro_usd": 6_500}, 3),
        ({"turns": 2}, 2),
    ],
    ids=["tokens", "cost", "turns"],
)
def test_a_run_asks_nothing_beyond_its_budget(limits: dict[str, int], asked: int):
    with PricedWorld(*ENDLESS) as world:
        world.begin()
        request = world.prompt(limits=limits)
        world.until(lambda: request.answers)
        result = result_of(request)
        assert result["status"] == "resource_exhausted"
        by_turns = "turns" in limits
        assert result["error"]["code"] == ("TURN_LIMIT" if by_turns else "BUDGET_EXHAUSTED")
        assert len(world.questions) == asked
        usage = result["usage"]
        assert usage["input_tokens"] + usage["output_tokens"] == asked * 110
        assert usage["cost_micro_usd"] == asked * 2_000
        assert usage["priced"] == asked
        assert ("TurnLimitReached" if by_turns else "BudgetExhausted") in rows(world)
        check_lawful(world)


def test_lost_answers_count_by_their_estimates_and_no_restart_refills_a_budget():
    """Three deaths: each may have been paid, so the budget ends the run before the fourth."""
    with PricedWorld(says("never", usage=USE)) as world:
        world.hold = True
        world.begin()
        text = "word " * 600
        world.prompt(text, limits={"tokens": 2_500})
        for number in (1, 2):
            world.until(lambda number=number: len(world.questions) == number)
            world.nodes[-1].crash()
            world.begin()
        world.until(lambda: world.closes, PATIENCE_S)
        world.settle()
        end = world.recorded()[-2].result
        assert end.error.code == "BUDGET_EXHAUSTED"
        assert len(world.questions) == 2
        first = world.model_facts(model.Requested)[0]
        assert first.estimate.input_tokens > 1_000
        assert first.estimate.cost_micro_usd == 10 * first.estimate.input_tokens
        assert end.usage.maybe_paid_tokens == 2 * first.estimate.input_tokens
        assert end.usage.maybe_paid_micro_usd == 2 * first.estimate.cost_micro_usd
        world.check_questions()
        check_lawful(world)


@pytest.mark.parametrize("restart", [False, True])
def test_the_runs_of_a_session_share_its_budget(restart: bool):
    with PricedWorld(says("done", usage=USE), budgets=ModelBudgets(session_tokens=250)) as world:
        world.begin()
        for number in range(1, 4):
            request = world.prompt()
            world.until(lambda request=request: request.answers)
            if number < 3:
                assert result_of(request)["status"] == "ok", number
            if restart:
                another_node(world)
        error = result_of(request)["error"]
        assert error["code"] == "BUDGET_EXHAUSTED"
        assert "of the session are used" in error["message"]
        assert len(world.questions) == 2


def test_the_same_call_with_the_same_outcome_is_noticed_and_then_ends_the_run():
    answers = [wants(call("fetch", a=1)), wants(call("fetch", a=1), call("fetch", a=1))] * 4
    with AgentWorld(*answers) as world:
        world.begin()
        request = world.prompt(limits={"repeats": 5})
        world.until(lambda: request.answers)
        result = result_of(request)
        assert (result["status"], result["error"]["code"]) == ("resource_exhausted", "NO_PROGRESS")
        assert len(world.questions) == 5
        notices = [
            part.content.partition(" [")[2]
            for message in world.questions[-1].messages
            for part in message.parts
            if hasattr(part, "content")
        ]
        words = "this call had the same outcome"
        assert notices[:3] == [""] * 3
        assert notices[3] == f"{words} 3 times]"
        assert notices[4] == f"{words} 4 times]"
        check_lawful(world)


def test_without_a_price_no_limit_of_cost_holds(tmp_path: Path):
    (tmp_path / "s.json").write_bytes(b'{"answers": []}')
    known = {"m": ConfiguredModel(provider="scripted", script="s.json")}
    models = open_models(known, "m", tmp_path)
    with pytest.raises(Refused, match="has no price") as refused:
        models.check(RunRequest(prompt="x", limits=RunLimits(cost_micro_usd=1)))
    assert refused.value.hint.startswith("[models.m.price]")


@pytest.mark.parametrize(
    ("limits", "of_run", "of_others", "next_", "fits"),
    [
        ({"tokens": 100}, {"input_tokens": 60}, {}, 40, True),
        ({"tokens": 100}, {"input_tokens": 60}, {}, 41, False),
        ({"tokens": 100}, {"output_tokens": 100}, {}, 0, False),
        ({"tokens": 100}, {"maybe_paid_tokens": 99}, {}, 2, False),
        ({"session_tokens": 100}, {"input_tokens": 50}, {"input_tokens": 40}, 10, True),
        ({"session_tokens": 100}, {"input_tokens": 50}, {"input_tokens": 50}, 0, False),
        ({"cost_micro_usd": 10}, {"cost_micro_usd": 9}, {}, 1, True),
        ({"cost_micro_usd": 10}, {"maybe_paid_micro_usd": 10}, {}, 0, False),
        ({"session_cost_micro_usd": 10}, {}, {"cost_micro_usd": 11}, 0, False),
        ({}, {"input_tokens": 1 << 40}, {}, 1 << 40, True),
    ],
)
def test_a_question_fits_if_what_is_used_and_its_estimate_do(
    limits: dict[str, int],
    of_run: dict[str, int],
    of_others: dict[str, int],
    next_: int,
    fits: bool,
):
    expected = ModelEstimate(input_tokens=next_, cost_micro_usd=next_)
    refusal = exceeded_budget(
        ModelLimits(**limits), ModelUsage(**of_run), ModelUsage(**of_others), expected
    )
    assert (refusal is None) == fits


# --- of the realm ---------------------------------------------------------------------------------


class RealmWorld(PricedWorld):
    """Its realm has a budget, which is read from the journal as a node reads it."""

    def __init__(self, *answers: dict[str, Any], **budgets: int) -> None:
        super().__init__(*answers, budgets=ModelBudgets(**budgets))
        self.models.realm_usage = self.realm_usage

    async def realm_usage(self) -> ModelUsage:
        return folded(self).today(self.now_ms())


def folded(world: AgentWorld) -> UsageProjection:
    """The use of the realm's models as its journal has it, half of it from a checkpoint."""
    stored, table = world.stored("", ""), UsageProjection()
    for number, one in enumerate(stored):
        if number == len(stored) // 2:
            (part,) = table.parts()
            table = table.empty()
            table.restore(part)
        table.apply(one)
    return table


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize(
    "budget", [{"realm_tokens": 250}, {"realm_cost_micro_usd": 4_200}], ids=["tokens", "cost"]
)
def test_the_sessions_of_a_realm_share_its_budget_of_a_day(budget: dict[str, int], restart: bool):
    with RealmWorld(says("done", usage=USE), **budget) as world:
        world.begin()
        for number, session in enumerate(("one", "two", "three")):
            asked = world.ask("run", session, prompt="go on")
            world.until(lambda asked=asked: asked.answers)
            found = result_of(asked)
            assert found["status"] == ("ok" if number < 2 else "resource_exhausted"), number
            if restart:
                another_node(world)
        assert found["error"]["code"] == "BUDGET_EXHAUSTED"
        assert "of the realm are used today" in found["error"]["message"]
        assert found["error"]["hint"].startswith("budgets.realm_")
        assert len(world.questions) == 2
        assert folded(world).today(world.now_ms() + 86_400_000) == ModelUsage()


def test_questions_of_several_sessions_that_are_open_count_before_they_are_answered():
    text = "word " * 300
    with RealmWorld(says("done", usage=USE), realm_tokens=1_400) as world:
        world.hold = True
        world.begin()
        asked = [world.ask("run", name, prompt=text) for name in ("one", "two", "three", "four")]
        world.until(lambda: sum(len(one.answers) for one in asked) == 2)
        assert len(world.questions) == 2
        world.hold = False
        world.until(lambda: all(one.answers for one in asked))
        codes = sorted((result_of(one)["error"] or {}).get("code", "") for one in asked)
        assert codes == ["", "", "BUDGET_EXHAUSTED", "BUDGET_EXHAUSTED"]


def test_nothing_is_asked_beyond_the_budget_of_a_realm_wherever_its_node_dies():
    answers = [wants(call("fetch", a=n), usage=USE) for n in range(1, 4)]
    for moment in range(3, 12):
        with RealmWorld(*answers, says("done", usage=USE), realm_tokens=350) as world:
            world.begin()
            world.prompt()
            world.kill_after(moment)
            world.until(lambda world=world: world.closes, PATIENCE_S)
            world.settle()
            used = folded(world).today(world.now_ms())
            tokens = used.input_tokens + used.output_tokens + used.maybe_paid_tokens
            assert tokens <= 350 + 110, "one answer may exceed what was expected of it"
            assert "BUDGET_EXHAUSTED" in str(world.recorded())
            world.check_questions()
            check_lawful(world)


def test_a_node_reads_its_lists_before_it_asks_within_a_budget_of_the_realm():
    with RealmWorld(says("done", usage=USE), realm_tokens=250) as world:
        behind = [True] * 3

        async def usage() -> ModelUsage:
            if behind:
                behind.pop()
                raise Failed("LISTS_BEHIND", "reading")
            return await world.realm_usage()

        world.models.realm_usage = usage
        world.begin()
        assert world.answered()["result"] == "done"
        assert behind == []
