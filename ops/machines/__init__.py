"""Tools for the state machines: traces, exploration, diagrams and tables.

They work on ``rookery.actors.machine_catalogue``. All of it is pure, except the command that writes
the generated tables.
"""

from rookery.ops.machines.exploration import explore, mermaid
from rookery.ops.machines.trace import machine_named, read_traces, run_trace

__all__ = [
    "explore",
    "machine_named",
    "mermaid",
    "read_traces",
    "run_trace",
]
