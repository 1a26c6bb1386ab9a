"""A question that failed is asked again by a plan on record, or its run ends with the reason.

A restart in the delay changes neither the attempt nor the time. Where a person has to decide, the
run waits for that person.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest
from msgspec import UNSET

from rookery.actors.execution.agents.models import KnownModel, Models
from rookery.actors.leases.provider import CurrentCredential, LeaseCredential
from rookery.actors.projections.lists.run_queries import run_wait
from rookery.actors.projections.lists.runs import RunProjection
from rookery.schemas.agents import ConfiguredModel
from rookery.schemas.facts import model, turn
from rookery.schemas.facts.run_progress import RunProgress
from tests.agents.agent_world import AgentWorld, call, result_of, says, wants
from tests.agents.test_model_driver import check_lawful, rows
from tests.execution.scripted_driver import SESSION

PATIENCE_S: Final = 300.0
"""Of the world's time: three long delays take 90 s."""
PROVIDER: Final = {"kind": "ProviderError", "retryable": True}
RETRIED: Final[dict[str, tuple[dict[str, Any], str, list[int]]]] = {
    "429": ({"kind": "RateLimited"}, "rate_limited", [30_000] * 3),
    "429 with a hint": (
        {"kind": "RateLimited", "retry_after_ms": 7_000},
        "rate_limited",
        [7_000] * 3,
    ),
    "429 with a short hint": (
        {"kind": "RateLimited", "retry_after_ms": 20},
        "rate_limited",
        [30_000] * 3,
    ),
    "500": (PROVIDER, "retryable_provider_error", [500, 1_000, 2_000]),
    "cut": ({"kind": "NetworkTimeout", "sent": "maybe"}, "network_timeout", [500, 1_000, 2_000]),
    "hang": ({"kind": "CallTimeout", "sent": "maybe"}, "call_timeout", [500, 1_000, 2_000]),
    "garbage": (PROVIDER | {"retries_max": 1}, "retryable_provider_error", [500]),
}
"""By fault: the failure, the seed's kind, and the delays until it is given up."""
FATAL: Final[dict[str, dict[str, Any]]] = {
    "401 without a lease": {"kind": "AuthError", "status": 401},
    "quota": {"kind": "ProviderError", "status": 429},
    "overflow": {"kind": "ContextExceeded", "status": 400},
    "unknown model": {"kind": "InvalidModel", "status": 404},
    "refusal": {"code": "MODEL_REFUSED"},
}


def failing(failure: dict[str, Any]) -> dict[str, Any]:
    return {"failure": {"message": "it broke", **failure}}


def ended(world: AgentWorld, asked: Any) -> dict[str, Any]:
    """The final result; the first reply may be that of a parked run."""
    world.until(lambda: world.closes, PATIENCE_S)
    world.settle()
    return result_of(asked)


@pytest.mark.parametrize("fault", RETRIED)
def test_a_failure_that_may_pass_is_retried_with_the_seeds_kind_and_delay(fault: str):
    failure, kind, delays = RETRIED[fault]
    with AgentWorld(failing(failure)) as world:
        world.begin()
        result = ended(world, world.prompt())
        assert result["error"]["code"] == "MODEL_FAILED"
        times = len(delays) + 1
        assert result["error"]["message"] == f"asked {times} times in vain, at last: it broke"
        failures = world.model_facts(model.Failed)
        planned = [fact for fact in failures if fact.plan is not UNSET]
        assert [fact.plan.selected_delay_ms for fact in planned] == delays
        assert [fact.plan.attempt for fact in planned] == list(range(1, times))
        attempts = [fact for fact in world.recorded() if isinstance(fact, turn.AttemptFailed)]
        assert {fact.failure_kind.value for fact in attempts} == {kind}
        assert [fact.selected_delay_ms for fact in attempts] == delays
        asked_at = [fact.at_ms for fact in world.model_facts(model.Requested)]
        for number, fact in enumerate(planned):
            assert fact.retry_at_ms <= asked_at[number + 1] + 1
        assert rows(world).count("RetryRequested") == len(delays)
        assert "RecoverableFailureGuarded" in rows(world)
        world.check_questions()
        check_lawful(world)


@pytest.mark.parametrize("fault", FATAL)
def test_a_failure_that_no_retry_mends_ends_the_run_with_its_kind(fault: str):
    with AgentWorld(failing(FATAL[fault])) as world:
        world.begin()
        result = ended(world, world.prompt())
        assert result["error"]["code"] == FATAL[fault].get("code", "MODEL_FAILED")
        assert result["error"]["message"] == "it broke"
        (failed,) = world.model_facts(model.Failed)
        assert failed.kind.value == FATAL[fault].get("kind", "ProviderError")
        assert failed.plan is UNSET
        assert len(world.questions) == 1
        check_lawful(world)


@pytest.mark.parametrize("failure", [PROVIDER, {"kind": "RateLimited"}], ids=["short", "long"])
@pytest.mark.parametrize("moment", range(1, 10))
def test_a_restart_in_the_delay_changes_neither_the_attempt_nor_the_time(
    failure: dict[str, Any], moment: int
):
    """The first question fails, and its repetition is answered. A long delay parks the run."""
    answers = (failing(failure), wants(call("fetch", a=1)), says("done"))
    with AgentWorld(*answers) as world:
        world.by_question = True
        world.begin()
        asked = world.prompt()
        world.kill_after(moment)
        assert ended(world, asked)["result"] == "done"
        planned = [fact for fact in world.model_facts(model.Failed) if fact.plan is not UNSET]
        (first,) = planned
        after = next(
            fact
            for fact in world.model_facts(model.Requested)
            if (fact.step, fact.attempt) == (1, first.attempt + 1)
        )
        assert after.at_ms >= first.retry_at_ms - 1
        assert rows(world).count("RetryRequested") == 1
        world.check_questions()
        check_lawful(world)
        parked = [fact for fact in world.recorded() if isinstance(fact, turn.Parked)]
        if failure is not PROVIDER and parked:
            assert {fact.code for fact in parked} == {"WAITING_FOR_MODEL"}
            assert {fact.until_ms for fact in parked} == {first.retry_at_ms}


@pytest.mark.parametrize("now", [True, False])
def test_a_run_that_waits_for_its_model_is_cancelled(now: bool):
    with AgentWorld(failing({"kind": "RateLimited"})) as world:
        world.begin()
        world.prompt()
        world.until(lambda: any(isinstance(fact, turn.Parked) for fact in world.recorded()))
        world.request("cancel", SESSION, run_id=world.runs[0], now=now)
        if now:
            world.until_over()
            assert len(world.questions) == 1
        world.until(lambda: world.closes, PATIENCE_S)
        check_lawful(world)


def test_after_three_lost_answers_an_operator_may_let_the_question_be_asked_again():
    with AgentWorld(says("at last")) as world:
        world.hold = True
        world.begin()
        world.prompt()
        for number in range(1, 5):
            world.until(lambda number=number: len(world.questions) == number)
            world.nodes[-1].crash()
            world.begin()
        world.until(lambda: any(isinstance(fact, turn.Parked) for fact in world.recorded()))
        world.settle()
        assert [fact.attempt for fact in world.model_facts(model.Lost)] == [1, 2, 3, 4]
        repeats = [fact.repeats for fact in world.model_facts(model.Requested)]
        assert repeats == [UNSET, 1, 2, 3]
        (parked,) = [fact for fact in world.recorded() if isinstance(fact, turn.Parked)]
        assert parked.code == "RECOVERY_WORK_EXCEEDED"
        world.hold = False
        of_question = {"run_id": world.runs[0], "operation_id": parked.waits_for[0]}
        wrong = world.request("resolve", SESSION, **of_question, completed=1)
        assert wrong.code == "INVALID_ARGUMENT"
        receipt = result_of(world.request("resolve", SESSION, **of_question, retry=True))
        assert receipt["state"] == "requested"
        world.until(lambda: world.closes, PATIENCE_S)
        world.settle()
        assert [fact.attempt for fact in world.model_facts(model.Requested)] == [1, 2, 3, 4, 5]
        world.check_questions()
        check_lawful(world)


def test_after_three_lost_answers_an_operator_may_end_the_run():
    with AgentWorld(says("never")) as world:
        world.hold = True
        world.begin()
        world.prompt()
        for number in range(1, 5):
            world.until(lambda number=number: len(world.questions) == number)
            world.nodes[-1].crash()
            world.begin()
        world.until(lambda: any(isinstance(fact, turn.Parked) for fact in world.recorded()))
        (parked,) = [fact for fact in world.recorded() if isinstance(fact, turn.Parked)]
        fault = {"code": "TOOL_ERROR", "message": "too dear"}
        world.request(
            "resolve",
            SESSION,
            run_id=world.runs[0],
            operation_id=parked.waits_for[0],
            failed=fault,
        )
        world.until(lambda: world.closes, PATIENCE_S)
        world.settle()
        end = next(fact for fact in world.recorded() if isinstance(fact, turn.Failed))
        assert end.result.error.message == "too dear"
        assert len(world.questions) == 4
        check_lawful(world)


def test_healthy_steps_are_never_given_up_however_often_the_node_dies():
    """Each loss is repaired by the next answer: what counts is work without progress."""
    steps, deaths = 200, 50
    with AgentWorld(*[wants(call("fetch", a=n)) for n in range(1, steps)], says("done")) as world:
        world.is_silent = lambda one: one.step % 4 == 0 and one.attempt == 1
        world.begin()
        world.prompt(limits={"turns": steps})
        for number in range(deaths):

            def is_silent(number: int = number) -> bool:
                return sum(map(world.is_silent, world.questions)) > number

            world.until(is_silent, PATIENCE_S)
            world.nodes[-1].crash()
            world.begin()
        world.until(lambda: world.closes, PATIENCE_S)
        world.settle()
        assert len(world.model_facts(model.Lost)) == deaths
        assert len(world.questions) == steps + deaths
        assert not [fact for fact in world.recorded() if isinstance(fact, turn.Parked)]
        world.check_questions()


class RenewedKeys:
    """Leases whose credential is fresh as soon as it was refused."""

    def __init__(self) -> None:
        self.generation = 1
        self.refused: list[int] = []

    async def get(self, binding: str) -> CurrentCredential:
        return CurrentCredential(
            LeaseCredential(value=f"{binding} key {self.generation} of eight letters"),
            self.generation,
        )

    async def get_past(self, binding: str, since_ms: int) -> tuple[CurrentCredential, ...]:
        return (await self.get(binding),)

    async def reject(self, binding: str, generation: int) -> None:
        self.refused.append(generation)
        self.generation += 1


@pytest.mark.parametrize(("refusals", "status"), [(1, "ok"), (20, "runtime_error")])
def test_a_question_is_asked_again_with_the_key_that_replaced_a_refused_one(
    refusals: int, status: str
):
    text = "no such key: bank key 1 of eight letters"
    refused = failing({"kind": "AuthError", "status": 401, "message": text})
    with AgentWorld(*[refused] * refusals, says("done")) as world:
        keys = RenewedKeys()
        bound = ConfiguredModel(provider="scripted", model="test", binding="bank")
        world.models = Models({"fast": KnownModel(bound, world.models.model("fast"))}, "fast")
        world.leases = {"credentials": keys}
        world.by_question = True
        world.begin()
        assert ended(world, world.prompt())["status"] == status
        attempts = min(refusals, 8)
        assert keys.refused == list(range(1, attempts + 1))
        assert len(world.model_facts(model.Failed)) == attempts
        assert "key 1" not in world.model_facts(model.Failed)[0].message
        world.check_questions()
        check_lawful(world)


def test_lists_say_what_a_run_waits_for_that_waits_for_its_model():
    with AgentWorld(failing({"kind": "RateLimited"})) as world:
        world.begin()
        world.prompt()
        world.until(lambda: any(isinstance(fact, turn.Parked) for fact in world.recorded()))
        progress, table = RunProgress(), RunProjection()
        for fact in world.recorded("turn"):
            progress.apply_fact(fact)
        (waits,) = progress.calls.values()
        assert (waits.name, waits.waits_for) == ("its model", "WAITING_FOR_MODEL")
        assert waits.until_ms == world.model_facts(model.Failed)[0].retry_at_ms
        for stored in world.stored("", SESSION):
            table.apply(stored)
        record = table.get(world.runs[0])
        assert record is not None
        wait = run_wait(table, record)
        assert wait is not None
        assert wait.what == "the time at which its model is asked again"
        assert wait.until_ms == waits.until_ms
        progress.apply_fact(turn.Unparked(run=world.runs[0]))
        assert not progress.calls


def test_an_adapter_that_is_cancelled_from_within_cancels_no_run():
    """Its library may do that, for example where a scope of its own ends."""
    with AgentWorld(says("hello")) as world:

        def is_cancelled(_: Any) -> bool:
            raise asyncio.CancelledError

        world.is_silent = is_cancelled
        world.begin()
        assert ended(world, world.prompt())["error"]["code"] == "MODEL_FAILED"
        assert len(world.model_facts(model.Failed)) == len(world.questions)
