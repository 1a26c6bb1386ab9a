"""Measurements of this machine, as ratios that mean something on another one.

Each bench starts its own server on loopback with a store of its own, and its own processes; none
touches what is running. ``ops/bench/<name>.py`` says what a bench measures and what it promises;
this file only names them. ``rookery bench`` prints what comes out.
"""

from __future__ import annotations

from collections.abc import Sequence

from rookery.ops.bench.harness.result_rows import Sync

__all__ = ["BENCHES", "run"]

BENCHES: dict[str, str] = {
    "baseline": "JetStream and the disk by themselves: what the others are compared with",
    "kernel": "commands by request-reply: rate and latency to the durable answer",
    "inbox": "commands through the durable inbox: rate and latency to the durable answer",
    "feed": "a fact appended to a live subscriber who has it",
    "rebuild": "facts to states: folding, taking over a journal, cold entities",
    "admission": "runs through the session family of a whole node: request to receipt",
    "runs": "whole runs and durable tool calls: request to result, rate, messages, memory",
    "approvals": "answered to running again, decisions a second, memory of parked runs",
    "sandbox": "programs by themselves: turns, fresh sessions, tool calls, sleeping, memory",
    "views": "lists of runs: folding them from facts, paging through 100,000, cold lists, memory",
    "machines": "deciding and folding one input of each state machine, beside copying its state",
}
"""Name to what it measures, in the order they run."""


def run(
    names: Sequence[str],
    *,
    sync: Sync | None = None,
    as_json: bool = False,
    rounds: int = 3,
) -> int:
    """Measure these and print; 1 if a target was missed, else 0.

    Without ``sync`` each bench runs under every setting it has a target for.
    """
    from rookery.ops.bench.harness.report import measure_and_print  # noqa: PLC0415 - slow.

    return measure_and_print(names, sync, as_json=as_json, rounds=rounds)
