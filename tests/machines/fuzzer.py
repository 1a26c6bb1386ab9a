"""Random histories of whole sessions, put to our machines and to the model at once.

Ours are asked as anybody asks them: by traces, from any beginning. The model is ``oracle``'s and
keeps a session of its own on plain dictionaries. A history is mostly about one machine; others
share its host and move it. Three steps of four are chosen so that something happens, of what can
happen what happened seldom.

``python -m tests.machines.fuzzer`` is the long form: it prints how often every row fired.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from rookery.actors.kernel.machines.machine import Edition, TransitionRejected
from rookery.actors.machine_catalogue import MACHINE_CATALOGUE, candidate, observed_turn
from rookery.actors.turns.turn_machine import TURN
from rookery.ops.machines.trace import InitialState, TraceSession, TraceStep
from tests.machines.oracle import ENUMS, MODEL, Oracle, Variables, copied

FIRED_MIN = 5
FIRED_MIN_LONG = 20
STEPS_A_FIRING = 30
"""A machine's histories have so many steps for each time that a row of it has to fire."""
STEPS_OF_A_HISTORY = 20
MOVERS = ("session_lifecycle", "session_admission", "turn_execution")
HOST: Variables = {
    "phase": "Initializing",
    "session_id": None,
    "active_runtime_id": None,
    "active_fence_token": None,
    "current_run_id": None,
    "pre_run_phase": None,
    "registration_phase": "Queuing",
    "silent_intents": set(),
}
HANDLES = {
    "session_lifecycle": "SessionLifecycle",
    "session_turn_admission": "SessionTurnAdmissionHandle",
    "approval_lifecycle": "ApprovalLifecycle",
}
"""Where the model's title names none."""

FAILED_TURN = {
    "phase": "Failed",
    "terminal_outcome": "Failed",
    "terminal_cause_kind": "LlmFailure",
}
LARGE = 2**63 - 1
TIMES = (0, 1, 5, 6, 1_000, LARGE)
SEQUENCES = (0, 1, 2, 7)
FLAG = (False, True)
POOLS: Mapping[str, tuple[Any, ...]] = {
    "run_id": ("run-1", "run-2"),
    "session_id_in": ("s", "other"),
    "intents": ([], ["quiet"], ["quiet", "supervisor.bridge", "mob.peer_added"]),
    "fence_token": (0, 7, LARGE),
    "generation": (1,),
    "agent_runtime_id": ("runtime", "another"),
    "start_conversation_run.primitive_kind_in": (
        *(["ConversationTurn"] * 4),
        *ENUMS["TurnPrimitiveKind"],
    ),
    "shape": tuple(ENUMS["ContentShape"]),
    "vision": FLAG,
    "image_results": FLAG,
    "max_retries": (0, 1, 2),
    "tool_count": (0, 1, 3, LARGE),
    "op_refs": ([], ["a"], ["a", "b"], ["b", "b"]),
    "barrier_ids": ([], ["a"], ["c", "a"]),
    "operation_ids": ([], ["a"], ["a", "c"], ["a", "b"]),
    "failure_kind": tuple(ENUMS["LlmRetryFailureKind"]),
    "retry_attempt": (0, 1, 2),
    "selected_delay_ms": (0, 700),
    "cause_kind": tuple(ENUMS["TurnTerminalCauseKind"]),
    "outcome": tuple(ENUMS["TurnTerminalOutcome"]),
    "apply_cause": (None, "refused"),
    "apply_message": (None, "why"),
    "surface_id": ("s", "t"),
    "now_ms": TIMES,
    "staged_seq": SEQUENCES,
    "task_seq": SEQUENCES,
    "lineage_seq": SEQUENCES,
    "applied_at_turn": (0, 3),
    "cause": tuple(ENUMS["ExternalToolSurfaceFailureCause"]),
    "epoch": (0, 1, 9),
    "flow_id": ("f", "g"),
    "max_outstanding_flows": (0, 1, 3),
    "approval_id": ("a", "b", "c", "d", "e", "f"),
    "updated_at_ms": (0, 1, 5, 6, 1_000),
    "advanced_at_ms": (0, 1, 5, 6, 7, 8, 9),
    "observed_ms": (0, 1, 5, 6, 7, 8, 9),
    "baseline_ms": (0, 1, 5, 6, 7, 8, 9),
}
"""Beside, or instead of, those of the catalogue."""
CURRENT = {
    "staged_seq": ("external_tool_surface", "staged_intent_sequence"),
    "task_seq": ("external_tool_surface", "pending_task_sequence"),
    "lineage_seq": ("external_tool_surface", "pending_lineage_sequence"),
    "operation_ids": ("turn_execution", "barrier_operation_ids"),
    "retry_attempt": ("turn_execution", "llm_retry_attempt"),
    "updated_at_ms": ("session_context", "last_updated_at_ms"),
}
"""Parameters that mean something only where they quote the state."""


def starts() -> list[Variables]:
    """Where a history may begin: hosts of all kinds, one of them impossible."""
    bound = {"session_id": "s", "active_runtime_id": "runtime", "active_fence_token": 3}
    run = {"phase": "Running", "current_run_id": "run-1", "session_id": "s"}
    return [
        {},
        {"active_runtime_id": "runtime"},
        {"phase": "Attached", **bound},
        {"phase": "Attached", "session_id": "s", "silent_intents": {"quiet"}},
        {"phase": "Idle", **bound},
        {"phase": "Idle"},
        {"phase": "Retired", **bound},
        {"phase": "Stopped", "session_id": "s"},
        {**run, "pre_run_phase": "Idle"},
        {**run, "pre_run_phase": "Attached", "silent_intents": {"quiet", "supervisor.bridge"}},
        {**run, "pre_run_phase": "Retired"},
        {"phase": "Running", "session_id": "s"},
    ]


class Modelled:
    """The same session as the model has it."""

    def __init__(self, host: Variables, states: Mapping[str, Variables]) -> None:
        self.host, self.states = host, dict(states)

    @classmethod
    def beginning(cls, host: Variables) -> Modelled:
        return cls({**copied(HOST), **host}, {name: _beginning(name) for name in MODEL})

    def copy(self) -> Modelled:
        """Steps replace what they change, so nothing is shared that moves."""
        return Modelled(self.host, self.states)

    def given(self) -> InitialState:
        """For a trace that goes on from here."""
        own = {name: _json(state) for name, state in self.states.items() if state}
        return InitialState(host=_json(self.host), state=own)

    def step(self, oracle: Oracle, name: str, on: str, params: Variables) -> Variables:
        """What a trace answers to the step if we do what the model says."""
        turn = self.states["turn_execution"]
        looks = {"turn_phase": turn["phase"], "terminal_cause_kind": turn["terminal_cause_kind"]}
        if on != "fail_run":
            looks = {}
        done = oracle.step(self.states[name], self.host, on, {**params, **looks})
        answer: Variables = {"ok": done.row is not None}
        if done.row is None:
            answer["rejection"] = self._rejection(oracle, name, on, params)
        else:
            answer["effects"] = [
                {"name": effect, "fields": _json(fields)} for effect, fields in done.effects
            ]
        self.states[name], self.host = done.state, done.host
        return {**answer, "state": self._told(name), "host": _json(self.host)}

    def _told(self, name: str) -> Variables:
        if MODEL[name].get("phase_source") != "host":
            return _json(self.states[name])
        host: Variables = _json(self.host)
        return host if name == "session_lifecycle" else {"phase": host["phase"]}

    def _rejection(self, oracle: Oracle, name: str, on: str, params: Variables) -> Variables:
        model, known = MODEL[name], on in oracle.inputs
        phase = self.host["phase"]
        if "host_phases" not in model and model.get("phase_source") != "host":
            state, scope = self.states[name], model.get("scope")
            phase = (
                state[scope["store"]].get(params[scope["key"]], scope["absent"])
                if scope
                else state["phase"]
            )
        named = re.search(r"\((\w+Handle)\b", model["title"])
        reason = "guard rejected" if known else "no matching"
        return {
            "kind": "GuardRejected" if known else "NoMatchingTransition",
            "context": f"{named[1] if named else HANDLES[name]}::{on}",
            "reason": f"{reason} transition from phase {phase} for {on}",
        }


class Fuzz:
    """Histories about one machine in one edition, judged step by step: whether it is taken, the
    state, the host, the effects with their order and fields, and the rejection."""

    def __init__(
        self, name: str, edition: Edition, fired_min: int = FIRED_MIN, seed: int = 0
    ) -> None:
        self.name, self.edition = name, edition
        self.fired_min, self.steps_min = fired_min, fired_min * STEPS_A_FIRING
        self.machine = MACHINE_CATALOGUE[name].machine
        self.fired: Counter[str] = Counter()
        self.steps = self.accepted = 0
        self._rng = random.Random(f"{seed}/{name}/{edition}")
        self._seen: dict[str, tuple[Modelled, Modelled]] = {}
        """Where the session stood before and after a row fired."""
        self._oracles = {known: Oracle(known, edition) for known in MODEL}

    @property
    def rows(self) -> list[str]:
        return [row.name for row in self.machine.transitions if row.edition in (None, self.edition)]

    def run(self) -> Fuzz:
        """Until every row has fired often enough, and not for ever."""
        steps_max = self.steps_min * len(self.rows)
        while self.steps < self.steps_min or (
            self.rarest < self.fired_min and self.steps < steps_max
        ):
            self._history()
        return self

    def expect_thorough(self) -> None:
        """A history in which little happens proves little."""
        assert self.steps >= self.steps_min
        assert self.accepted >= 0.4 * self.steps
        seldom = {row: self.fired[row] for row in self.rows if self.fired[row] < self.fired_min}
        assert seldom == {}, (self.name, self.edition)

    @property
    def rarest(self) -> int:
        return min(self.fired[row] for row in self.rows)

    def _beginning(self) -> Modelled:
        """Often where one of the rows that fire seldom has fired, or just before it did."""
        seldom = sorted(self._seen, key=lambda row: self.fired[row])[:4]
        if all(self.fired[row] >= self.fired_min for row in seldom) or self._rng.random() < 0.3:
            model = Modelled.beginning(self._rng.choice(starts()))
            if self._rng.random() < 0.2:
                model.states["turn_execution"] |= FAILED_TURN
            return model
        return self._rng.choice(self._seen[self._rng.choice(seldom)]).copy()

    def _history(self) -> None:
        model = self._beginning()
        session = TraceSession(self.edition, model.given())
        for _ in range(STEPS_OF_A_HISTORY):
            name = self.name if self._rng.random() < 0.8 else self._rng.choice(MOVERS)
            step, row = self._chosen(session, model, name)
            before, answer = model.copy(), session.step(step)
            expected = model.step(self._oracles[name], name, step.input, step.params)
            assert answer == expected, (self.edition, step, session.host)
            assert _order(answer) == _order(expected), (self.edition, step)
            self.steps += 1
            self.accepted += answer["ok"]
            if row and name == self.name:
                self.fired[row] += 1
                self._seen[row] = (before, model.copy())

    def _chosen(self, session: TraceSession, model: Modelled, name: str) -> tuple[TraceStep, str]:
        """Of several steps the one whose row fired least; elsewhere any that fires."""
        inputs = list(MACHINE_CATALOGUE[name].machine.inputs)
        inputs *= 1 + 12 // len(inputs)
        self._rng.shuffle(inputs)
        steps = (self._any(model, name, on) for on in inputs)
        any_step = next(steps)
        if self._rng.random() < 0.25:
            return any_step, self._row(session, any_step)
        firing = ((step, row) for step in steps if (row := self._row(session, step)))
        if name == self.name:
            return min(firing, key=lambda fires: self.fired[fires[1]], default=(any_step, ""))
        return next(firing, (any_step, ""))

    def _any(self, model: Modelled, name: str, on: str) -> TraceStep:
        asked = MACHINE_CATALOGUE[name].machine.inputs[on].params
        params = {param: self._value(model, name, on, param) for param in asked}
        return TraceStep(machine=name, input=on, params=params)

    def _value(self, model: Modelled, name: str, on: str, param: str) -> Any:
        quoted = CURRENT.get(param)
        if quoted is not None and quoted[0] == name and self._rng.random() < 0.7:
            current = model.states[name][quoted[1]]
            if isinstance(current, dict) and current:
                return self._rng.choice(list(current.values()))
            if isinstance(current, set):
                return sorted(current)
            if isinstance(current, int):
                return min(current + self._rng.choice(FLAG), LARGE)
        pools = MACHINE_CATALOGUE[name].pools
        for known, where in ((POOLS, f"{on}.{param}"), (pools, f"{on}.{param}"),
                             (POOLS, param), (pools, param)):  # fmt: skip
            if where in known:
                return self._rng.choice(known[where])
        raise LookupError(f"no values for {on}({param})")

    def _row(self, session: TraceSession, step: TraceStep) -> str:
        """The row of ours that takes it, if any; whether it should is the model's to say."""
        machine = MACHINE_CATALOGUE[step.machine].machine
        seen = observed_turn(machine, step.input, session.state(TURN))
        try:
            asked = candidate(machine, step.input, step.params, seen)
            fact = machine.decide(session.state(machine), step.input, asked, edition=self.edition)
        except TransitionRejected:
            return ""
        return str(fact.row)


def _beginning(name: str) -> Variables:
    model = MODEL[name]
    state = {
        variable: set(value) if isinstance(value, list) else copied(value)
        for variable, value in model["initial_variables"].items()
    }
    if model.get("phase_source") != "host" and "scope" not in model:
        state["phase"] = model["initial"]
    return state


def _order(answer: Variables) -> list[list[str]]:
    """The names of the effects' fields, one after the other."""
    return [list(effect["fields"]) for effect in answer.get("effects", ())]


def _json(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, dict):
        return {key: _json(found) for key, found in value.items()}
    return value


def main() -> None:
    steps = accepted = 0
    for name in MACHINE_CATALOGUE:
        for edition in Edition:
            fuzz = Fuzz(name, edition, FIRED_MIN_LONG).run()
            steps, accepted = steps + fuzz.steps, accepted + fuzz.accepted
            print(f"{name} ({edition}): {fuzz.steps} steps, {fuzz.accepted / fuzz.steps:.0%} taken")
            for row in fuzz.rows:
                print(f"  {fuzz.fired[row]:6} {row}")
            fuzz.expect_thorough()
    print(f"{steps} steps, {accepted / steps:.0%} taken")


if __name__ == "__main__":
    main()
