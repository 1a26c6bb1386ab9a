"""Exploring a machine: every state of its small world, nearest first, and what must hold of each.

Checked in every state: the machine's invariants; that every row of every edition folds, whatever
the state; that a refused input names no row and so leaves no fact; and that nothing asked of a
state changes it. What was seen on the way is kept for tables and diagrams. The worlds are
``rookery.actors.machine_catalogue``'s.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from rookery.actors.kernel.machines.machine import Edition, Machine, TransitionRejected
from rookery.actors.kernel.machines.session_host import RUNNING, SessionHost, host_of, with_host
from rookery.actors.machine_catalogue import MachineEntry, candidates

__all__ = ["Exploration", "InputOutcome", "PhaseChange", "RepeatOutcome", "explore"]

VIOLATIONS_MAX: Final = 10
IDLE_RUNNING_HOST: Final = SessionHost(phase=RUNNING, session_id="s")
"""No history leads there; some rows are for it nevertheless."""


class RepeatOutcome(StrEnum):
    """What the same input does when it comes again at once."""

    REFUSED = "refused"
    NO_OP = "no-op"
    EFFECTS_AGAIN = "told again"
    """Nothing changes, and the effects are asked for once more."""
    COUNTED = "counted"


class InputOutcome(StrEnum):
    """What a phase makes of an input."""

    ALLOWED = "allowed"
    GUARDED = "guarded"
    """Allowed, unless variables or parameters are against it."""
    REJECTED = "guard rejected"
    """There are rows for it, and no history in which they hold."""
    NEVER = "no transition"


class PhaseChange(NamedTuple):
    """An input took a machine from one phase to another, or left it where it was."""

    start: str
    on: str
    end: str


class Exploration:
    """What was found of one machine in one edition."""

    def __init__(self, entry: MachineEntry, edition: Edition) -> None:
        self.entry, self.machine, self.edition = entry, entry.machine, edition
        self.states = self.transitions = self.depth = 0
        self.violations: list[str] = []
        self.start = ""
        self.phase_changes: dict[PhaseChange, None] = {}
        self.rows: set[str] = set()
        self.repeats: dict[str, set[RepeatOutcome]] = {}
        self.hosts: dict[str, set[str]] = {}
        """Host phases in which an input was ever taken; empty where the host does not matter."""
        self._verdicts: dict[tuple[str, str], set[tuple[str, bool]]] = {}
        """Of a phase and an input: at which host phase it was taken, or not."""
        self._unreached: set[tuple[str, str]] = set()

    @property
    def inputs(self) -> list[str]:
        """Those this edition has rows for."""
        known = {row.on for row in self.machine.transitions if row.edition in (None, self.edition)}
        return [on for on in self.machine.inputs if on in known]

    @property
    def dead_ends(self) -> list[str]:
        """Phases one can come to and no row leaves."""
        left = {move.start for move in self.phase_changes if move.start != move.end}
        seen = {phase for phase, _ in self._verdicts}
        return [str(phase) for phase in self.machine.phases if phase in seen - left]

    def outcome(self, phase: str, on: str) -> InputOutcome:
        """A host at which the input is never taken is not held against it."""
        hosts = self.hosts.get(on, set())
        verdicts = self._verdicts.get((phase, on), set())
        said = {verdict for host, verdict in verdicts if host in hosts}
        if True in said:
            return InputOutcome.GUARDED if False in said else InputOutcome.ALLOWED
        return InputOutcome.REJECTED if (phase, on) in self._unreached else InputOutcome.NEVER

    # --- what the explorer notes ----------------------------------------------------------------

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
    """Everything there is a way to."""
    explorer = _Explorer(entry, edition)
    explorer.search()
    explorer.search_unreached()
    return explorer.explored


class _Explorer:
    def __init__(self, entry: MachineEntry, edition: Edition) -> None:
        self.explored = Exploration(entry, edition)
        self._entry, self._machine, self._edition = entry, entry.machine, edition
        self._candidates = [
            (machine, on, asked)
            for machine in (entry.machine, *entry.companions)
            for on in machine.inputs
            for asked in candidates(entry, machine, on)
        ]
        self._facts = [
            replace(asked, row=row.name)
            for row in self._machine.transitions
            for asked in candidates(entry, self._machine, row.on)
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
        """Which of the inputs a phase never took it has rows for, if no history that fires them."""
        never = {
            (phase, on)
            for phase in self._machine.phases
            for on in self.explored.inputs
            if self.explored.outcome(phase, on) is InputOutcome.NEVER
        }
        beyond = {with_host(state, IDLE_RUNNING_HOST) for state in self._found}
        for state in beyond - self._found:
            for machine, on, asked in self._candidates:
                phase = machine.phase(state, asked)
                if (phase, on) in never and self._decide(machine, state, on, asked) is not None:
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
        """Whatever was accepted somewhere, some day, by whichever edition."""
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
                    self.explored.record_violation(f"{fact.row} makes something else of {state}")

    def _successors(self, state: Any) -> Iterator[Any]:
        """What comes of everything that can be asked of ``state``, and of its session elsewhere."""
        before = hash(state)
        for machine, on, asked in self._candidates:
            fact = self._decide(machine, state, on, asked)
            after = None if fact is None else machine.evolve(state, fact)
            if machine is self._machine:
                self._record(state, on, asked, fact, after)
            if after is not None:
                yield after
        if hash(state) != before:
            self.explored.record_violation(f"{state} was changed in place")
        for host in self._entry.hosts:
            yield with_host(state, host)

    def _decide(self, machine: Machine[Any], state: Any, on: str, asked: Any) -> Any | None:
        """The fact, or ``None``."""
        draft = replace(asked)
        try:
            return machine.decide(state, on, draft, edition=self._edition)
        except TransitionRejected:
            if draft.row:
                self.explored.record_violation(f"{on} was refused by {state} and left {draft}")
            return None

    def _record(self, state: Any, on: str, asked: Any, fact: Any | None, after: Any) -> None:
        explored, phase = self.explored, self._machine.phase(state, asked)
        host = None if isinstance(state, SessionHost) else host_of(state)
        where = "" if host is None else host.phase.value
        explored.record_verdict(phase, on, where, taken=fact is not None)
        if fact is None:
            return
        explored.transitions += 1
        explored.rows.add(fact.row)
        explored.phase_changes[PhaseChange(phase, on, self._machine.phase(after, asked))] = None
        explored.repeats.setdefault(on, set()).add(self._repeat(on, asked, after))

    def _repeat(self, on: str, asked: Any, after: Any) -> RepeatOutcome:
        again = self._decide(self._machine, after, on, asked)
        if again is None:
            return RepeatOutcome.REFUSED
        then = self._machine.evolve(after, again)
        if then != after:
            return RepeatOutcome.COUNTED
        return (
            RepeatOutcome.EFFECTS_AGAIN
            if self._machine.effects(then, again)
            else RepeatOutcome.NO_OP
        )
