"""Exploration of a machine: visits every state of a small world, nearest first, and checks each.

The checks: the machine's invariants hold; every transition of every edition folds in any state; a
refused input leaves no fact; no input changes a state in place. Tables and the Mermaid diagram are
drawn from the result. ``rookery.actors.machine_catalogue`` defines the worlds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from rookery.actors.kernel.machines import (
    RUNNING,
    Edition,
    Machine,
    SessionHost,
    TransitionRejected,
    host_of,
    with_host,
)
from rookery.actors.machine_catalogue import MachineEntry, candidates

__all__ = ["DuplicateOutcome", "Exploration", "InputOutcome", "PhaseChange", "explore", "mermaid"]

VIOLATIONS_MAX: Final = 10
IDLE_RUNNING_HOST: Final = SessionHost(phase=RUNNING, session_id="s")
"""No history reaches this host, but some transitions are for it."""


class DuplicateOutcome(StrEnum):
    """The effect of repeating an input at once."""

    REFUSED = "refused"
    NO_OP = "no-op"
    EFFECTS_AGAIN = "effects again"
    """The state does not change, and the effects are requested again."""
    COUNTED = "counted"


class InputOutcome(StrEnum):
    """Whether a phase accepts an input."""

    ALLOWED = "allowed"
    GUARDED = "guarded"
    """Allowed, depending on variables or parameters."""
    REJECTED = "guard rejected"
    """It has transitions, but no history in which their guards hold."""
    NEVER = "no transition"


class PhaseChange(NamedTuple):
    """The phases before and after an input."""

    start: str
    on: str
    end: str


class Exploration:
    """The result for one machine in one edition."""

    def __init__(self, entry: MachineEntry, edition: Edition) -> None:
        self.entry, self.machine, self.edition = entry, entry.machine, edition
        self.states = self.transitions = self.depth = 0
        self.violations: list[str] = []
        self.start = ""
        self.phase_changes: dict[PhaseChange, None] = {}
        self.rows: set[str] = set()
        self.repeats: dict[str, set[DuplicateOutcome]] = {}
        self.hosts: dict[str, set[str]] = {}
        """Host phases in which an input was ever accepted; empty if the host does not matter."""
        self._verdicts: dict[tuple[str, str], set[tuple[str, bool]]] = {}
        """By phase and input: the host phases, and whether the input was accepted."""
        self._unreached: set[tuple[str, str]] = set()

    @property
    def inputs(self) -> list[str]:
        """The inputs for which this edition has transitions."""
        known = {row.on for row in self.machine.transitions if row.edition in (None, self.edition)}
        return [on for on in self.machine.inputs if on in known]

    @property
    def dead_ends(self) -> list[str]:
        """Reachable phases that no transition leaves."""
        left = {move.start for move in self.phase_changes if move.start != move.end}
        seen = {phase for phase, _ in self._verdicts}
        return [str(phase) for phase in self.machine.phases if phase in seen - left]

    def outcome(self, phase: str, on: str) -> InputOutcome:
        """The outcome over all hosts at which the input is accepted at least once."""
        hosts = self.hosts.get(on, set())
        verdicts = self._verdicts.get((phase, on), set())
        accepted = {verdict for host, verdict in verdicts if host in hosts}
        if True in accepted:
            return InputOutcome.GUARDED if False in accepted else InputOutcome.ALLOWED
        return InputOutcome.REJECTED if (phase, on) in self._unreached else InputOutcome.NEVER

    # --- recording --------------------------------------------------------------------------------

    def record_verdict(self, phase: str, on: str, host: str, *, taken: bool) -> None:
        self._verdicts.setdefault((phase, on), set()).add((host, taken))
        if taken:
            self.hosts.setdefault(on, set()).add(host)

    def record_unreached(self, phase: str, on: str) -> None:
        self._unreached.add((phase, on))

    def record_violation(self, what: str) -> None:
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(what)


def explore(entry: MachineEntry, edition: Edition = Edition.HEAD) -> Exploration:
    """Visit every reachable state."""
    explorer = _Explorer(entry, edition)
    explorer.search()
    explorer.search_unreached()
    return explorer.explored


class _Explorer:
    def __init__(self, entry: MachineEntry, edition: Edition) -> None:
        self.explored = Exploration(entry, edition)
        self._entry, self._machine, self._edition = entry, entry.machine, edition
        self._candidates = [
            (machine, on, proposed)
            for machine in (entry.machine, *entry.companions)
            for on in machine.inputs
            for proposed in candidates(entry, machine, on)
        ]
        self._facts = [
            replace(proposed, row=row.name)
            for row in self._machine.transitions
            for proposed in candidates(entry, self._machine, row.on)
        ]
        self._found: set[Any] = set()
        self._folded: set[Any] = set()

    def search(self) -> None:
        initial, explored = self._machine.initial, self.explored
        explored.start = self._machine.phase(initial, self._candidates[0][2])
        self._found.add(initial)
        open_states = deque([(initial, 0)])
        while open_states:
            state, explored.depth = open_states.popleft()
            self._check(state)
            for after in self._successors(state):
                if after not in self._found and self._entry.within(after):
                    self._found.add(after)
                    open_states.append((after, explored.depth + 1))
        explored.states = len(self._found)

    def search_unreached(self) -> None:
        """Find inputs that a phase never accepted although it has transitions for them."""
        never = {
            (phase, on)
            for phase in self._machine.phases
            for on in self.explored.inputs
            if self.explored.outcome(phase, on) is InputOutcome.NEVER
        }
        beyond = {with_host(state, IDLE_RUNNING_HOST) for state in self._found}
        for state in beyond - self._found:
            for machine, on, proposed in self._candidates:
                phase = machine.phase(state, proposed)
                if (phase, on) in never and self._decide(machine, state, on, proposed) is not None:
                    self.explored.record_unreached(phase, on)

    def _check(self, state: Any) -> None:
        for holds in self._machine.invariants:
            if not holds(state):
                self.explored.record_violation(f"{holds.__name__} does not hold of {state}")
        own = state if isinstance(state, SessionHost) else with_host(state, SessionHost())
        if own not in self._folded:
            self._folded.add(own)
            self._fold_everything(state)

    def _fold_everything(self, state: Any) -> None:
        """Fold the fact of every transition of every edition, as replay may have to."""
        kind = type(state)
        for fact in self._facts:
            try:
                whole = type(self._machine.evolve(state, fact)) is kind
            except Exception as error:
                self.explored.record_violation(
                    f"{fact.row} cannot be folded into {state}: {error!r}"
                )
            else:
                if not whole:
                    self.explored.record_violation(f"{fact.row} folds {state} into another type")

    def _successors(self, state: Any) -> Iterator[Any]:
        """The states after every input to ``state``, and after every change of its host."""
        before = hash(state)
        for machine, on, proposed in self._candidates:
            fact = self._decide(machine, state, on, proposed)
            after = None if fact is None else machine.evolve(state, fact)
            if machine is self._machine:
                self._record(state, on, proposed, fact, after)
            if after is not None:
                yield after
        if hash(state) != before:
            self.explored.record_violation(f"{state} was changed in place")
        for host in self._entry.hosts:
            yield with_host(state, host)

    def _decide(self, machine: Machine[Any], state: Any, on: str, proposed: Any) -> Any | None:
        """The fact, or ``None`` if the input is refused."""
        draft = replace(proposed)
        try:
            return machine.decide(state, on, draft, edition=self._edition)
        except TransitionRejected:
            if draft.row:
                self.explored.record_violation(f"{on} was refused by {state} and left {draft}")
            return None

    def _record(self, state: Any, on: str, proposed: Any, fact: Any | None, after: Any) -> None:
        explored, phase = self.explored, self._machine.phase(state, proposed)
        host = None if isinstance(state, SessionHost) else host_of(state)
        where = "" if host is None else host.phase.value
        explored.record_verdict(phase, on, where, taken=fact is not None)
        if fact is None:
            return
        explored.transitions += 1
        explored.rows.add(fact.row)
        explored.phase_changes[PhaseChange(phase, on, self._machine.phase(after, proposed))] = None
        explored.repeats.setdefault(on, set()).add(self._on_duplicate(on, proposed, after))

    def _on_duplicate(self, on: str, proposed: Any, after: Any) -> DuplicateOutcome:
        repeated = self._decide(self._machine, after, on, proposed)
        if repeated is None:
            return DuplicateOutcome.REFUSED
        then = self._machine.evolve(after, repeated)
        if then != after:
            return DuplicateOutcome.COUNTED
        return (
            DuplicateOutcome.EFFECTS_AGAIN
            if self._machine.effects(then, repeated)
            else DuplicateOutcome.NO_OP
        )


def mermaid(explored: Exploration) -> str:
    """The diagram: an arrow for each pair of phases, with its inputs."""
    arrows: dict[tuple[str, str], list[str]] = {}
    order = {on: place for place, on in enumerate(explored.machine.inputs)}
    for move in sorted(explored.phase_changes, key=lambda move: order[move.on]):
        arrows.setdefault((move.start, move.end), []).append(move.on)
    lines = ["stateDiagram-v2", f"    [*] --> {explored.start}"]
    lines += [
        f"    {start} --> {end}: {', '.join(arrows[start, end])}"
        for start in explored.machine.phases
        for end in explored.machine.phases
        if (start, end) in arrows
    ]
    lines += [f"    {phase} --> [*]" for phase in explored.dead_ends]
    return "\n".join(lines) + "\n"
