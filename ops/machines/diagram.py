"""A machine as a Mermaid state diagram, drawn from its exploration."""

from __future__ import annotations

from rookery.ops.machines.exploration import Exploration

__all__ = ["mermaid"]


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
