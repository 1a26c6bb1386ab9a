"""Realms in memory whose runs have hooks at every live point; the loop calls their functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rookery.actors.execution.driver import Finished
from rookery.actors.hooks import hook
from rookery.actors.hooks.authoring import LocalHook
from rookery.actors.tools.authoring import HOOK_ATTRIBUTE
from rookery.schemas.facts import hook as facts
from rookery.schemas.facts import turn
from rookery.schemas.run import RunResult, SideEffect
from rookery.schemas.seed.hook_invocation import HookInput, HookResponse
from tests.execution.driver_scripts import SCRIPTS, Pause, Script, wants
from tests.execution.scripted_driver import SESSION, ScriptedWorld
from tests.tools.tool_fixtures import CAPABILITIES, capability, node_tools

__all__ = ["CALLS", "DECIDED", "HookedWorld", "QuickHook", "dead", "played", "quick_hook"]

CALLS = 10
DECIDED = facts.ResponseDecided


class QuickHook(LocalHook):
    """A hook whose function the loop calls, so that it answers within the tick."""

    async def invoke(self, hook_input: HookInput) -> HookResponse:
        answer: HookResponse = self._answer(hook_input)
        return answer


def quick_hook(point: str, answer: Callable[[HookInput], Any], *rights: str, **more: Any) -> Any:
    """A hook of this point that answers so."""
    settings = {"mode": "enforce", "sees": "content_capture_allowed", "timeout_ms": 1_500, **more}
    name = settings.pop("name", f"at-{point.replace('_', '-')}")
    answer.__qualname__ = name.replace("-", "_")  # Each is a function of its own.
    decorated = hook(point, rights=rights, name=name, **settings)(answer)
    made: LocalHook = getattr(decorated, HOOK_ATTRIBUTE)
    return QuickHook(made.registration, answer)


def dead(_: HookInput) -> Any:
    """A hook whose service is gone."""
    raise ConnectionError("nobody answers")


def return_results(run: str, calls: int = CALLS) -> Script:
    """Calls, one after the other, whose values are the result."""
    del run
    values = []
    for number in range(1, calls + 1):
        results = yield wants(number)
        values.append(results[number].value or results[number].error.code)
    yield Finished(RunResult(result=values), kept=True)


def return_two_results(run: str) -> Script:
    """The same, with two calls."""
    return return_results(run, 2)


def pay_once(run: str) -> Script:
    """A program that makes a call with an effect."""
    del run
    results = yield wants(1, tool="pay")
    value = results[1].value or results[1].error.code
    yield Finished(RunResult(result=value), kept=True)


def pay_guarded(run: str) -> Script:
    """A program that makes a call for which an approver is asked."""
    del run
    results = yield wants(1, tool="guarded")
    yield Finished(RunResult(result=results[1].error.code), kept=True)


def pause_between(run: str) -> Script:
    """Two calls, and time in which a node may die, before the first and between them."""
    del run
    yield Pause(1_000)
    results = yield wants(1)
    first = results[1].value
    yield Pause(1_000)
    results = yield wants(2)
    yield Finished(RunResult(result=[first, results[2].value]), kept=True)


class HookedWorld(ScriptedWorld):
    """Runs of scripts with the hooks of the test."""

    scripts: Mapping[str, Callable[[str], Script]] = {
        **SCRIPTS,
        **{
            one.__name__: one
            for one in (return_results, return_two_results, pay_once, pay_guarded, pause_between)
        },
    }

    def __init__(self, *hooks: LocalHook) -> None:
        self.hooks = hooks
        super().__init__()
        pay = capability("pay", idempotent=False, side_effect=SideEffect.WRITE)
        self.visible = node_tools(*CAPABILITIES, pay)

    @property
    def end(self) -> Any:
        """How the run has ended."""
        kinds = turn.Completed | turn.Failed | turn.Cancelled
        return [fact for fact in self.recorded() if isinstance(fact, kinds)][-1]


def played(world: ScriptedWorld, script: str = "call_ten_times") -> int:
    """How many messages the script's run has."""
    world.begin()
    world.play(script)
    world.until_over()
    return len(world.stored("", SESSION))
