"""Each reader of facts reads every fact of its families, or names it here as one it leaves out.

So a new fact fails this test until each reader folds it, shows it, or leaves it out on purpose.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from types import ModuleType, UnionType
from typing import Any, Final, NamedTuple, get_args

import pytest

from rookery.actors.approvals.evolve import evolve as evolve_approvals
from rookery.actors.approvals.lifecycle_machine import APPROVALS
from rookery.actors.approvals.state import SessionApprovals
from rookery.actors.kernel.machines import Machine
from rookery.actors.tools.evolve import evolve_calls
from rookery.actors.tools.state import SessionCalls
from rookery.actors.turns.model_routing_machine import MODEL_ROUTING
from rookery.actors.turns.realtime_turn_machine import PRODUCT_TURN
from rookery.actors.turns.slot_machine import SLOT
from rookery.ops.cli.rendering.fact_words import LANES
from rookery.schemas.codec import fact_name, wire_names
from rookery.schemas.envelope import Fact, HistoryRestart
from rookery.schemas.export import FAMILIES
from tests.laws.source import dotted
from tests.wire.test_facts import Watered

Kinds = frozenset[type[Fact]]


def of_family(family: str) -> Kinds:
    return frozenset(wire_names(FAMILIES[family]).values())


def named(family: str, names: str) -> Kinds:
    """Facts by their names in the family; a ``ValueError`` for a name that it does not have."""
    kinds = {fact_name(kind).partition(".")[2]: kind for kind in of_family(family)}
    if unknown := sorted(set(names.split()) - set(kinds)):
        raise ValueError(f"{family} has no facts {', '.join(unknown)}")
    return frozenset(kinds[name] for name in names.split())


def of_machines(*machines: Machine[Any]) -> Kinds:
    return frozenset(one.fact for machine in machines for one in machine.inputs.values())


# --- facts that several readers leave out ---------------------------------------------------------

RESTARTS: Final = frozenset(
    kind for family in FAMILIES for kind in of_family(family) if issubclass(kind, HistoryRestart)
)
"""The kernel and the journal's readers begin anew at them."""
HOST_MOVES: Final = named(
    "session",
    "bindings_prepared destroyed executor_ensured executor_exited executor_stop_requested recovered"
    " recycled registered reset retired run_interrupt_requested silent_intents_set unregistered"
    " work_ingested",
)
"""Only the machines of the session's host read them."""
SESSION_SETTINGS: Final = named("session", "classes_raised initialized limits_set rights_narrowed")
NOT_OF_RUNS: Final = of_machines(SLOT, PRODUCT_TURN, MODEL_ROUTING)
"""Facts of machines that no run uses."""
TURN_PHASES: Final = named(
    "turn",
    "attempt_failed boundary_applied boundary_cancel_requested boundary_completed budget_exhausted"
    " callback_pending cancel_requested cancellation_observed cancelled_without_run"
    " extraction_entered extraction_failed extraction_started extraction_validation_failed"
    " extraction_validation_passed fatally_failed retry_requested terminal_acknowledged"
    " terminal_returned time_budget_exceeded turn_limit_reached",
)
"""Only the turn's machine reads them, or they say what their name says."""
IMMEDIATE_STARTS: Final = named("turn", "immediate_append_started immediate_context_started")
NOT_OF_STEPS: Final = (
    NOT_OF_RUNS
    | TURN_PHASES
    | IMMEDIATE_STARTS
    | named("turn", "history_restarted ops_barrier_satisfied primitive_applied unparked")
)
"""Nothing that a step of a program continues with."""
APPROVERS: Final = named("approval", "approver_added approver_refused approver_revoked")
GRANT_ENDS: Final = named("approval", "grant_expired grant_revoked")
MACHINE_APPROVALS: Final = of_machines(APPROVALS)
"""Approvals of no call: their machine reads them."""


class Reader(NamedTuple):
    """The tables and functions of a module that name the facts they read."""

    module: str
    parts: tuple[str, ...]
    families: tuple[str, ...]
    left_out: Kinds

    def __str__(self) -> str:
        return f"{self.module}: {', '.join(self.parts)}"


READERS: Final = (
    Reader(
        "actors.admission.evolve",
        ("evolve", "_FOLDS"),
        ("session",),
        HOST_MOVES | named("session", "boundary_cancel_requested"),
    ),
    Reader(
        "actors.approvals.evolve",
        ("_FOLDS",),
        ("approval",),
        MACHINE_APPROVALS | named("approval", "history_restarted"),
    ),
    Reader("actors.tools.evolve", ("_FOLDS",), ("tool",), named("tool", "history_restarted")),
    Reader(
        "actors.turns.evolve",
        ("evolve_requests", "_evolve_requested"),
        ("session",),
        HOST_MOVES
        | named(
            "session",
            "boundary_cancel_requested history_restarted queued_run_drained run_prepared",
        ),
    ),
    Reader(
        "actors.turns.evolve",
        ("End", "evolve_run", "evolve_parking"),
        ("turn",),
        NOT_OF_RUNS
        | TURN_PHASES
        | IMMEDIATE_STARTS
        | named("turn", "history_restarted ops_barrier_satisfied primitive_applied"),
    ),
    Reader(
        "schemas.facts.run_progress",
        ("_KINDS",),
        ("session", "turn", "tool", "approval"),
        RESTARTS
        | HOST_MOVES
        | SESSION_SETTINGS
        | NOT_OF_RUNS
        | TURN_PHASES
        | MACHINE_APPROVALS
        | APPROVERS
        | GRANT_ENDS
        | named("session", "boundary_cancel_requested reply_requested")
        | named("turn", "ops_barrier_satisfied ops_registered primitive_applied")
        | named("turn", "tool_calls_resolved")
        | named(
            "approval", "answer_refused dispatch_intended dispatch_resulted dispatched escalated"
        )
        | named("approval", "grant_consumed grant_issued session_grant_issued"),
    ),
    Reader(
        "actors.projections.lists.runs",
        ("_KINDS", "_RESTARTED"),
        ("session", "turn", "tool"),
        HOST_MOVES
        | SESSION_SETTINGS
        | NOT_OF_RUNS
        | TURN_PHASES
        | named("session", "boundary_cancel_requested reply_requested")
        | named("turn", "history_restarted ops_barrier_satisfied ops_registered")
        | named("turn", "primitive_applied tool_calls_resolved")
        | named("tool", "history_restarted"),
    ),
    Reader(
        "actors.projections.lists.approvals",
        ("_KINDS",),
        ("approval",),
        MACHINE_APPROVALS
        | APPROVERS
        | named("approval", "dispatch_resulted dispatched history_restarted recovery_required"),
    ),
    Reader(
        "actors.projections.trust",
        ("Approvers",),
        ("approval",),
        of_family("approval") - APPROVERS | named("approval", "approver_refused"),
    ),
    Reader(
        "actors.projections.reports.nodes",
        ("nodes_of",),
        ("node",),
        named(
            "node",
            "checkpoint command_quarantined message_quarantined partitions_taken rights_revoked",
        ),
    ),
    Reader(
        "actors.execution.history",
        ("RunHistoryReader", "_GOES_ON", "TurnEnd"),
        ("turn",),
        NOT_OF_STEPS | named("turn", "tool_calls_resolved"),
    ),
    Reader(
        "actors.execution.step_inputs",
        ("StepInputs",),
        ("turn",),
        NOT_OF_STEPS | named("turn", "parked started"),
    ),
    Reader(
        "ops.cli.rendering.fact_words",
        ("_OF_CALLS", "_OF_OTHERS", "_CALLS_RETURNED"),
        tuple(LANES),
        RESTARTS
        | HOST_MOVES
        | SESSION_SETTINGS
        | NOT_OF_RUNS
        | TURN_PHASES
        | IMMEDIATE_STARTS
        | MACHINE_APPROVALS
        | APPROVERS
        | GRANT_ENDS
        | named("session", "input_refused reply_requested")
        | named("turn", "started primitive_applied tool_calls_resolved")
        | named("turn", "cancelled completed failed")
        | named("tool", "adopted allowed refused withdrawn")
        | named("approval", "dispatch_resulted recovery_required session_grant_issued")
        | named("sandbox", "snapshot_kept snapshot_restored"),
    ),
    Reader(
        "ops.cli.rendering.timeline",
        ("_KINDS",),
        ("session", "turn"),
        RESTARTS & (of_family("session") | of_family("turn"))
        | HOST_MOVES
        | SESSION_SETTINGS
        | NOT_OF_RUNS
        | TURN_PHASES
        | IMMEDIATE_STARTS
        | named("session", "boundary_cancel_requested reply_requested")
        | named("turn", "ops_barrier_satisfied ops_registered unparked"),
    ),
    Reader(
        "ops.metrics",
        ("_FactMetrics",),
        ("approval",),
        MACHINE_APPROVALS
        | APPROVERS
        | GRANT_ENDS
        | named(
            "approval", "dispatch_intended dispatch_resulted dispatched escalated history_restarted"
        )
        | named("approval", "grant_consumed grant_issued recovery_required requested")
        | named("approval", "session_grant_issued"),
    ),
)
"""The words of a fact that ``fact_words`` leaves out are its name."""
WITHOUT_A_LANE: Final = frozenset({"lease", "node", "peer", "surface"})
"""Their facts belong to no run."""


# --- the facts that a reader names ----------------------------------------------------------------


def facts_read(reader: Reader) -> Kinds:
    """The facts that the parts name, one by one, in a union, in a tuple or as keys."""
    module = import_module(f"rookery.{reader.module}")
    names = {name for part in _definitions(module, reader.parts) for name in _names_in(part)}
    return frozenset(kind for name in names for kind in _kinds_of(_value(module, name)))


def _definitions(module: ModuleType, parts: tuple[str, ...]) -> Iterator[ast.AST]:
    for node in ast.parse(inspect.getsource(module)).body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) if name in parts:
                yield node
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.expr() as value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ) if name in parts:
                yield value


def _names_in(node: ast.AST) -> Iterator[str]:
    """The dotted names of the code; annotations read nothing."""
    for field, value in ast.iter_fields(node):
        if field not in ("annotation", "returns"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.Name | ast.Attribute):
                    yield dotted(child)
                if isinstance(child, ast.AST):
                    yield from _names_in(child)


def _value(module: ModuleType, name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _kinds_of(value: Any) -> Iterator[type[Fact]]:
    members = get_args(value) if isinstance(value, UnionType) else value
    for one in members if isinstance(members, tuple | Mapping) else (members,):
        if isinstance(one, type) and issubclass(one, Fact):
            yield one


def names_of(kinds: Kinds) -> str:
    return ", ".join(sorted(map(fact_name, kinds)))


@pytest.mark.parametrize("reader", READERS, ids=str)
def test_a_reader_reads_every_fact_or_leaves_it_out_by_name(reader: Reader):
    known = frozenset[type[Fact]]().union(*map(of_family, reader.families))
    forgotten = names_of(known - facts_read(reader) - reader.left_out)
    assert not forgotten, f"{reader} does not read {forgotten}: read them, or leave them out here"


@pytest.mark.parametrize("reader", READERS, ids=str)
def test_a_reader_leaves_out_no_fact_that_it_reads(reader: Reader):
    needless = names_of(facts_read(reader) & reader.left_out)
    assert not needless, f"{reader} reads {needless}: take them out of the facts it leaves out"


def test_every_family_has_a_lane_in_the_timeline_or_is_left_out():
    assert set(LANES) | WITHOUT_A_LANE == set(FAMILIES)
    assert not WITHOUT_A_LANE & set(LANES)


@pytest.mark.parametrize(
    ("fold", "state"),
    [(evolve_approvals, SessionApprovals()), (evolve_calls, SessionCalls())],
    ids=["approvals", "calls"],
)
def test_a_fact_without_a_fold_changes_nothing(fold: Callable[[Any, Any], Any], state: Any):
    assert fold(state, Watered()) is state
