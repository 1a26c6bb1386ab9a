"""Benches: measurements of this machine, as ratios that are comparable on another one.

Each bench starts its own processes and its own server on loopback, with its own store.
``ops/bench/suites/<name>.py`` says what a bench measures and its targets; this file names the
benches. ``rookery bench`` runs them and prints the figures. ``profile/`` takes a run apart,
``peers/`` compares with other runtimes, and ``history/`` compares with earlier commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rookery.ops.bench.harness.result_rows import Sync

__all__ = ["BENCHES", "run"]

BENCHES: dict[str, str] = {
    "baseline": "JetStream and the disk alone: the baselines of the other benches",
    "kernel": "commands by request-reply: rate and latency to the durable answer",
    "inbox": "commands through the durable inbox: rate and latency to the durable answer",
    "feed": "from the append of a fact to a live subscriber",
    "rebuild": "facts to states: folding, taking over a journal, cold entities",
    "admission": "runs through the session family of a node: request to receipt",
    "runs": "whole runs and durable tool calls: request to result, rate, messages",
    "approvals": "answer to end of run, decisions a second, memory of parked runs",
    "leases": "calls with a credential, memory and idle time of many leases, time of a refresh",
    "hooks": "a durable call with a hook of each kind, relative to one without",
    "mesh": "requests between peers, over a link too; envelopes, and many peers that wait",
    "surfaces": "calls by MCP beside its SDK alone, and a realm with 2,000 tools",
    "sandbox": "programs without a node: turns, fresh sessions, tool calls, snapshots, memory",
    "languages": "seven programs in each language, relative to native CPython and to node",
    "views": "lists of runs: folding them from facts, paging through 100,000, cold lists, memory",
    "machines": "deciding and folding an input of each machine, relative to copying its state",
}
"""What each bench measures, in the order they run."""


def run(
    names: Sequence[str],
    *,
    sync: Sync | None = None,
    as_json: bool = False,
    rounds: int = 3,
    history: Path | None = None,
) -> int:
    """Run these benches and print; 1 if a target was missed, else 0. ``history`` is the file in
    which the ratios are recorded.

    Without ``sync`` each bench runs with every setting it has a target for.
    """
    from rookery.ops.bench.harness.report import measure_and_print  # noqa: PLC0415 - slow.

    return measure_and_print(names, sync, as_json=as_json, rounds=rounds, history=history)
