"""Laws of calls that hold in every order of events.

A history consists of calls, crashes, lost claims, delayed acks and resolutions. At the end every
dead node has a successor and an operator resolves every open call; then the journal is compared
with the executions that the tool backend counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rookery.actors.kernel.decider import decode_state, encode_state
from rookery.actors.tools.effects import call_effects
from rookery.actors.tools.evolve import evolve_calls
from rookery.actors.tools.state import SessionCalls
from rookery.schemas.calls import ToolFault
from rookery.schemas.facts import tool as facts
from rookery.schemas.run import SideEffect
from tests.selection import examples
from tests.tools.tool_fixtures import CAPABILITIES, ToolNode, ToolWorld, call, operation

IDEMPOTENT = {one.name: one.idempotent for one in CAPABILITIES}
ENDS = {"completed", "failed", "refused", "withdrawn"}
TOOLS = ("fetch", "send", "single", "nothing")
KEYS = ("a", "b")


class CallHistory:
    """One node after another, two sessions, and the calls requested in them."""

    def __init__(self, world: ToolWorld) -> None:
        self.world, self.node = world, world.begin()
        self.asked: list[tuple[str, str, int]] = []

    def request_calls(self, name: str, key: str) -> None:
        number = len(self.asked) + 1
        self.asked.append((key, name, number))
        self.world.ask("request", key, run=f"of-{key}", calls=[self._call(number, name, key)])
        self.world.settle()

    def crash(self) -> None:
        self.node.crash()
        self.node = self.world.begin()
        self.world.pass_s(12)

    def lose_claims(self) -> None:
        """The node loses the claims of its sessions and gets them again."""
        self.node.bus.claims.cut = True  # type: ignore[attr-defined]
        self.world.pass_s(8)
        self.node.bus.claims.cut = False  # type: ignore[attr-defined]
        self.world.pass_s(8)

    def hold(self) -> None:
        self.world.backend.hold = True

    def let_go(self) -> None:
        self.world.backend.hold = False
        self.world.settle()

    def hold_acks(self) -> None:
        self.node.journal.hold_acks()

    def release(self) -> None:
        self.node.release()
        self.world.settle()

    def pass_time(self) -> None:
        self.world.pass_s(3)

    def resolve(self, word: str = "retry") -> None:
        said = {"retry": True} if word == "retry" else {"completed": "as the operator says"}
        for key, _, number in self.asked:
            found = operation(number, f"of-{key}")
            self.world.ask("resolve", key, run_id=f"of-{key}", operation_id=found, **said)
        self.world.settle()

    def finish(self) -> None:
        """Let every pending reply arrive, and let an operator resolve what stays open."""
        self.release()
        self.crash()
        self.let_go()
        self.world.until(self._quiet)

    def _quiet(self) -> bool:
        open_now = [one for one in self.asked if self.last_fact(*one) not in ENDS]
        if any(self.last_fact(*one) == "recovery_required" for one in open_now):
            self.world.loop.create_task(self._resolve_soon())
        return not open_now

    async def _resolve_soon(self) -> None:
        for key, _, number in self.asked:
            found = operation(number, f"of-{key}")
            self.world.ask("resolve", key, run_id=f"of-{key}", operation_id=found, completed=1)

    def last_fact(self, key: str, _: str, number: int) -> str:
        """The last fact of a call; a call without facts was refused or never requested."""
        kinds = self.kinds(key, number)
        if kinds:
            return kinds[-1]
        return "refused" if not self._was_wanted(key, number) else ""

    def kinds(self, key: str, number: int) -> list[str]:
        return self.world.kinds(number, key, f"of-{key}")

    def _was_wanted(self, key: str, number: int) -> bool:
        found = operation(number, f"of-{key}").encode()
        return any(b'"' + found + b'"' in one.body for one in self.world.stored("turn", key))

    def _call(self, number: int, name: str, key: str) -> Any:
        return call(number, name, a=number, run=f"of-{key}")


STEPS: st.SearchStrategy[Callable[[CallHistory], None]] = st.one_of(
    st.builds(
        lambda name, key: lambda scenario: scenario.request_calls(name, key),
        st.sampled_from(TOOLS),
        st.sampled_from(KEYS),
    ),
    st.sampled_from(
        [
            CallHistory.crash,
            CallHistory.lose_claims,
            CallHistory.hold,
            CallHistory.let_go,
            CallHistory.hold_acks,
            CallHistory.release,
            CallHistory.pass_time,
            CallHistory.resolve,
            lambda scenario: scenario.resolve("completed"),
        ]
    ),
)


@examples(40)
@given(st.lists(STEPS, min_size=3, max_size=14))
def test_no_call_is_executed_twice_unseen_and_every_call_has_exactly_one_outcome(
    steps: list[Callable[[CallHistory], None]],
):
    with ToolWorld() as world:
        scenario = CallHistory(world)
        for step in steps:
            step(scenario)
        scenario.finish()
        for key, name, number in scenario.asked:
            kinds = Counter(scenario.kinds(key, number))
            assert sum(kinds[end] for end in ENDS) <= 1
            executed = world.executions(number, f"of-{key}")
            assert executed <= kinds["intent_recorded"]
            if not IDEMPOTENT.get(name, True):
                assert kinds["intent_recorded"] <= 1 + kinds["retry_allowed"]
        assert world.backend.running_max["single"] <= 1 + len(world.nodes)
        assert_folds_to_what_is_known(world, scenario.node)


def assert_folds_to_what_is_known(world: ToolWorld, node: ToolNode) -> None:
    for key in KEYS:
        folded = reduce(evolve_calls, world.tool_facts(key=key), SessionCalls())
        known = [one.progress for one in folded.calls_of_run(f"of-{key}")]
        assert world.progress(node, key=key, run=f"of-{key}") == known


# --- folding --------------------------------------------------------------------------------------


def histories() -> st.SearchStrategy[list[facts.ToolFact]]:
    """Facts in any order, of any call, also such as no decider would write."""
    of_call = st.fixed_dictionaries(
        {"run": st.sampled_from(["r", "s"]), "operation_id": st.sampled_from("xyz")}
    )
    wrong = ToolFault("CODE", "why")
    requested = {
        "name": "n", "surface": "local", "number": 1, "side_effect": SideEffect.NONE,
        "idempotent": True, "idempotency_key": "k", "schema_digest": "", "request_digest": "",
        "timeout_ms": 1,
    }  # fmt: skip
    kinds: Iterable[tuple[Any, dict[str, Any]]] = (
        (facts.Refused, {"name": "n", "number": 1, "request_digest": "", "error": wrong}),
        (facts.Requested, requested),
        (facts.IntentRecorded, {"attempt": 1, "node": "n", "deadline_at_ms": 1}),
        (facts.Completed, {"response_digest": "", "duration_ms": 1}),
        (facts.Failed, {"error": wrong, "status": "error", "duration_ms": 1}),
        (facts.RecoveryRequired, {"reason": "r"}),
        (facts.RecoveryRequired, {"reason": "r", "may_act_until_ms": 2}),
        (facts.RetryAllowed, {"resolved_by": "o"}),
        (facts.Withdrawn, {}),
    )
    made = [
        of_call.map(lambda ids, kind=kind, more=more: kind(**ids, **more)) for kind, more in kinds
    ]
    return st.lists(st.one_of(made), max_size=20)


@given(histories())
def test_folding_never_fails_and_keeps_of_older_runs_only_what_is_open(
    history: list[facts.ToolFact],
):
    state = reduce(evolve_calls, history, SessionCalls())
    assert decode_state(encode_state(state), SessionCalls) == state
    assert all(c.run == state.run or c.phase != "ended" for c in state.calls.values())
    for fact in history:
        assert len(call_effects(state, fact)) <= 1
