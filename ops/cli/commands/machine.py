"""``rookery machine``: the state machines, without a node or a server."""

from __future__ import annotations

import json
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter

from rookery.actors.kernel.machines import Edition, Machine
from rookery.actors.machine_catalogue import MACHINE_CATALOGUE
from rookery.ops.cli.options import NO_OPTIONS, Options
from rookery.ops.cli.output import print_json, print_line, print_table
from rookery.ops.machines import explore, machine_named, mermaid, read_traces, run_trace
from rookery.schemas.errors import Refused

__all__ = ["app"]

app = App(name="machine", help_format="plaintext")

HEAD = Edition.HEAD

Which = Annotated[Edition, Parameter(help="Rules of HEAD, or of the seed.")]


class CheckedMachine(msgspec.Struct, frozen=True, kw_only=True):
    """The result of exploring a machine."""

    machine: str
    edition: Edition
    states: int
    transitions: int
    depth: int
    seconds: float
    violations: tuple[str, ...]


@app.command(name="list")
def list_machines(*, edition: Which = HEAD, options: Options = NO_OPTIONS) -> int:
    """List all machines."""
    shown = [_summary(entry.machine, edition) for entry in MACHINE_CATALOGUE.values()]
    if options.json:
        print_json(shown)
        return 0
    print_table(
        ["MACHINE", "HANDLE", "PHASES", "INPUTS", "ROWS"],
        (list(row.values()) for row in shown),
        empty="no machines",
    )
    return 0


@app.command
def show(
    name: Annotated[str, Parameter(help="The machine.")],
    *,
    diagram: Annotated[bool, Parameter(help="Print a Mermaid diagram.", negative="")] = False,
    edition: Which = HEAD,
    options: Options = NO_OPTIONS,
) -> int:
    """Print a machine's phases, inputs and rows."""
    machine = machine_named(name)
    if diagram:
        print_line(mermaid(explore(MACHINE_CATALOGUE[name], edition)).rstrip("\n"))
        return 0
    shown = _description(machine, edition)
    if options.json:
        print_json(shown)
        return 0
    print_line(f"{machine.name} ({machine.handle}), edition {edition}")
    print_line(f"phases: {', '.join(shown['phases'])}")
    print_line(f"always: {', '.join(shown['invariants']) or 'nothing is declared'}\n")
    print_table(
        ["INPUT", "PARAMETERS", "FACT", "ROWS"],
        ((i["name"], ", ".join(i["params"]), i["fact"], ", ".join(i["rows"]))
         for i in shown["inputs"]),
        empty="no inputs",
    )  # fmt: skip
    return 0


@app.command
def run(
    *,
    trace: Annotated[Path, Parameter(help="A trace, or a list of traces, as JSON.")],
    edition: Which = HEAD,
    options: Options = NO_OPTIONS,
) -> int:
    """Run a trace through the machines; print the result of each step as JSON."""
    try:
        traces = read_traces(trace.read_bytes())
    except OSError as error:
        raise Refused("INVALID_ARGUMENT", f"{trace}: {error.strerror}") from None
    answers: list[Any] = []
    if isinstance(traces, list):
        answers += [run_trace(one, edition) for one in traces]
    else:
        answers += run_trace(traces, edition)
    if options.json:
        print_json(answers)
    else:
        print_line(json.dumps(answers, indent=2, ensure_ascii=False))
    return 0


@app.command
def check(
    name: Annotated[str | None, Parameter(help="Only this machine.")] = None,
    *,
    edition: Which = HEAD,
    options: Options = NO_OPTIONS,
) -> int:
    """Explore every reachable state of a small world; exit code 1 if a rule is broken."""
    names = list(MACHINE_CATALOGUE) if name is None else [machine_named(name).name]
    checked = [_check(one, edition) for one in names]
    if options.json:
        print_json(checked)
    else:
        print_table(
            ["MACHINE", "STATES", "TRANSITIONS", "DEPTH", "SECONDS", "VERDICT"],
            (
                [c.machine, c.states, c.transitions, c.depth, f"{c.seconds:.2f}", _verdict(c)]
                for c in checked
            ),
            empty="no machines",
        )
        for found in checked:
            for violation in found.violations:
                print_line(f"{found.machine}: {violation}")
    return 1 if any(found.violations for found in checked) else 0


def _check(name: str, edition: Edition) -> CheckedMachine:
    start_s = perf_counter()
    explored = explore(MACHINE_CATALOGUE[name], edition)
    return CheckedMachine(
        machine=name,
        edition=edition,
        states=explored.states,
        transitions=explored.transitions,
        depth=explored.depth,
        seconds=round(perf_counter() - start_s, 3),
        violations=tuple(explored.violations),
    )


def _verdict(checked: CheckedMachine) -> str:
    return f"{len(checked.violations)} violations" if checked.violations else "ok"


def _summary(machine: Machine[Any], edition: Edition) -> dict[str, Any]:
    rows = [row for row in machine.transitions if row.edition in (None, edition)]
    return {
        "name": machine.name,
        "handle": machine.handle,
        "phases": len(machine.phases),
        "inputs": len({row.on for row in rows}),
        "rows": len(rows),
    }


def _description(machine: Machine[Any], edition: Edition) -> dict[str, Any]:
    rows: dict[str, list[str]] = {}
    for row in machine.transitions:
        if row.edition in (None, edition):
            rows.setdefault(row.on, []).append(row.name)
    return {
        "name": machine.name,
        "handle": machine.handle,
        "edition": edition,
        "phases": [str(phase) for phase in machine.phases],
        "invariants": [holds.__name__ for holds in machine.invariants],
        "inputs": [
            {
                "name": on,
                "params": list(accepted.params),
                "fact": accepted.fact.__struct_config__.tag or "",
                "rows": rows[on],
            }
            for on, accepted in machine.inputs.items()
            if on in rows
        ],
    }
