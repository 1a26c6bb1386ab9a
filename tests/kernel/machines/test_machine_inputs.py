"""Every input of every machine as a command: the actor does what the rules say."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from rookery.actors.kernel.decider import encode_state
from rookery.actors.kernel.machines.decider import MachineDecider
from rookery.actors.kernel.machines.machine import TransitionRejected
from rookery.actors.machine_catalogue import MACHINE_CATALOGUE, candidates
from rookery.schemas.codec import encode_json
from rookery.schemas.commands import HandleInput
from rookery.schemas.envelope import Command, Fact
from rookery.schemas.errors import Refused
from tests.kernel.machines.machine_world import MACHINES, START, MachineWorld, body, made


@pytest.fixture
def realm() -> Iterator[MachineWorld]:
    with MachineWorld() as made:
        yield made


class Mirror:
    """A decider's rules, used beside the actor that follows them."""

    def __init__(self, realm: MachineWorld, concern: MachineDecider, key: str) -> None:
        self.realm, self.key = realm, key
        self.concern = concern
        """Of the same node: its counts over entities restart when they are evicted."""
        self.state = concern.initial(key)
        self.observed = self.told = 0

    def catch_up(self) -> None:
        if self.concern.observes:
            facts = self.realm.facts_of("session", self.key)
            for fact in facts[self.observed :]:
                self.state = self.concern.observe(self.state, fact)
            self.observed = len(facts)

    def ask(self, on: str, params: dict[str, Any]) -> bool:
        """The actor gives the same state and the same reply as the rules."""
        self.catch_up()
        self.concern.on_state(self.key, self.state)
        (verb,) = (verb for verb, kind in self.concern.verbs.items() if kind is HandleInput)
        command = Command(verb=verb, key=self.key, id="", body=HandleInput(input=on, params=params))
        asked = self.realm.put(verb, on, key=self.key, **params)
        facts, refused = self._decided(command)
        if refused is not None:
            error = body(asked)["error"]
            assert (asked.code, error["message"]) == (refused.code, refused.message)
            return False
        stored = self.realm.facts_of(self.concern.family, self.key)[self.told :]
        assert [(type(f), f.row) for f in stored] == [(type(f), f.row) for f in facts]
        self.told += len(stored)
        for fact in stored:
            self.state = self.concern.evolve(self.state, fact)
        self.concern.on_state(self.key, self.state)
        expected = self.concern.reply(self.state, command, stored)
        assert asked.answers[-1].body == encode_json(expected), (on, params)
        return True

    def _decided(self, command: Command[Any]) -> tuple[Sequence[Fact], Refused | None]:
        try:
            return self.concern.decide(self.state, command, now_ms=0), None
        except Refused as refused:
            return (), refused


WIDER: dict[str, tuple[Any, ...]] = {"staged_seq": (*range(12),), "lineage_seq": (*range(12),)}


def worlds(kind: type[MachineDecider]) -> dict[str, list[dict[str, Any]]]:
    """Every input of the decider's machines, with parameters of its small world."""
    found = {}
    for part in kind.bindings:
        entry, machine = MACHINE_CATALOGUE[part.machine.name], part.machine
        entry = entry._replace(pools={**entry.pools, **WIDER})
        for on, asked in machine.inputs.items():
            made = [
                {name: _field(draft, name) for name in asked.params}
                for draft in candidates(entry, machine, on)
            ]
            found[on] = [msgspec.to_builtins(params) for params in made]
    return found


def _field(draft: Any, name: str) -> Any:
    renamed = {"run_id": "run", "cause": "cause_in", "generation": "generation_in"}
    return getattr(draft, renamed.get(name, name))


def likely(
    rng: random.Random, mirror: Mirror, asked: dict[str, list[Any]], taken: Counter[str]
) -> tuple[str, dict[str, Any]]:
    """Mostly inputs that are accepted, rare ones first."""
    inputs = sorted(asked, key=lambda on: (taken[on] + 1) * rng.random())
    for on in inputs if rng.random() < 0.9 else ():
        for params in rng.sample(asked[on], min(len(asked[on]), 12)):
            with suppress(TransitionRejected):
                mirror.concern.decide_input(mirror.state, mirror.key, on, params)
                return on, params
    return inputs[0], rng.choice(asked[inputs[0]])


SESSIONS, STEPS = 20, 60
_RUN = ("start_conversation_run", {"run_id": "run-1", **START})
_TOOLS = ("llm_returned_tool_calls", {"tool_count": 1})
_EXTRACT = ("enter_extraction", {"max_retries": 1})
_SURFACE = {"surface_id": "x"}
_AGAIN = {
    "failure_kind": "rate_limited",
    "retry_attempt": 1,
    "max_retries": 1,
    "selected_delay_ms": 1,
    "error": "too often",
}
_NOTHING = {
    "execution_kind_present": False,
    "prompt_trimmed_text_byte_count": 0,
    "prompt_non_text_block_count": 0,
    "pending_continuation": "NoPendingBoundary",
}


def _boundary(staged_seq: int) -> tuple[str, dict[str, Any]]:
    return "apply_boundary", {
        **_SURFACE,
        "now_ms": 1,
        "staged_seq": staged_seq,
        "applied_at_turn": 1,
    }


def _succeeded(seq: int) -> tuple[str, dict[str, Any]]:
    return "mark_pending_succeeded", {**_SURFACE, "task_seq": seq, "lineage_seq": 2 * seq - 1}


_STAGED = {**_SURFACE, "now_ms": 1}
LONG_WAYS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "turn": [
        *(_RUN, ("primitive_applied", {}), ("llm_returned_terminal", {}), _EXTRACT),
        *(("extraction_start", {}), ("llm_returned_terminal", {}), _EXTRACT),
        *(("extraction_validation_failed", {"error": "no"}), ("llm_returned_terminal", {})),
        *(_EXTRACT, ("extraction_validation_passed", {})),
        *(_RUN, ("primitive_applied", {}), ("recoverable_failure", _AGAIN)),
        *(("retry_requested", {"retry_attempt": 1}), ("llm_returned_terminal", {})),
        ("boundary_complete", {}),
        *(_RUN, ("primitive_applied", {}), _TOOLS),
        ("register_pending_ops", {"op_refs": ["a"], "barrier_ids": ["a"]}),
        ("ops_barrier_satisfied", {"operation_ids": ["a"]}),
        *(("tool_calls_resolved", {}), ("boundary_continue", {}), _TOOLS, ("callback_pending", {})),
        *(("claim_turn", {}), ("resolve_start_turn_disposition", _NOTHING)),
        ("resolve_last_start_turn_public_terminal", {}),
        *(("begin_turn", {}), ("resolve_turn", {}), ("finalize_turn", {})),
        *(_RUN, ("primitive_applied", {}), ("extraction_failed", {"error": "no"})),
    ],
    "surface": [
        *(("stage_add", _STAGED), _boundary(1), _succeeded(1)),
        *(("stage_remove", _STAGED), _boundary(2), ("finalize_removal_clean", _SURFACE)),
        *(("stage_add", _STAGED), _boundary(3), _succeeded(2), ("call_started", _SURFACE)),
        *(("stage_remove", _STAGED), _boundary(4), ("finalize_removal_forced", _SURFACE)),
    ],
}
"""Paths that chance seldom takes."""
NEVER_HERE = {"turn": {"force_cancel_no_run"}}
"""No legal history has a Running host without a run."""


@pytest.mark.parametrize("kind", MACHINES, ids=lambda kind: kind.family)
def test_every_input_is_a_command_that_does_what_the_rules_say(
    realm: MachineWorld, kind: type[MachineDecider]
) -> None:
    rng, asked, taken = random.Random(3), worlds(kind), Counter[str]()
    concern = made(kind)
    for number in range(SESSIONS):
        key = f"dev:{number}" if kind.family == "lease" else f"s{number}"
        mirror = Mirror(realm, concern, key)
        machine = kind.bindings[number % len(kind.bindings)].machine
        some = {on: asked[on] for on in machine.inputs}
        if kind.observes:
            realm.open(key)
        for on, params in LONG_WAYS.get(kind.family, ()) if number == 0 else ():
            assert mirror.ask(on, params), on
            taken[on] += 1
        for step in range(STEPS):
            on, params = likely(rng, mirror, asked if step % 8 == 0 else some, taken)
            if mirror.ask(on, params):
                taken[on] += 1
            if step == STEPS // 2:
                realm.forget()
                mirror.concern = concern = made(kind)
        if number % 5 == 0:
            realm.replace_node()
            mirror.concern = concern = made(kind)
        mirror.ask(*likely(rng, mirror, asked, taken))
    assert set(asked) - set(taken) <= NEVER_HERE.get(kind.family, set())


@pytest.mark.parametrize("kind", MACHINES, ids=lambda kind: kind.family)
def test_a_state_survives_its_snapshot(kind: type[MachineDecider]) -> None:
    concern = made(kind)
    initial = concern.initial("s")
    assert concern.load(concern.dump(initial)) == initial
    assert concern.dump(initial) == encode_state(initial)
