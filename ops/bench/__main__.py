"""``python -m rookery.ops.bench ROLE TASK``: one process of a bench, started by the bench."""

from __future__ import annotations

import sys
from pkgutil import resolve_name

import msgspec

from rookery.ops.bench.harness.load import Task

__all__ = ["main"]

_ROLES = {
    "load": "rookery.ops.bench.harness.load_generator:generate",
    "turns": "rookery.ops.bench.harness.bench_nodes:serve_turns",
    "whole": "rookery.ops.bench.harness.bench_nodes:serve_whole",
    "runs": "rookery.ops.bench.harness.bench_nodes:serve_runs",
    "hooks": "rookery.ops.bench.harness.bench_nodes:serve_hooks",
    "peers": "rookery.ops.bench.harness.bench_nodes:serve_peers",
    "leases": "rookery.ops.bench.harness.bench_nodes:serve_leases",
    "followed": "rookery.ops.bench.loads.lease_load:report_followed",
    "tokens": "rookery.ops.bench.loads.lease_load:serve_tokens",
    "mcp_many": "rookery.ops.bench.loads.mcp_load:serve_many",
    "mcp_same": "rookery.ops.bench.loads.mcp_load:serve_same",
    "memory": "rookery.ops.bench.loads.sandbox_load:report_memory",
}
"""By name, so that a load generator does not import a node, which takes as long as its start."""


def main() -> None:
    role, text = sys.argv[1:]
    resolve_name(_ROLES[role])(msgspec.json.decode(text, type=Task))


if __name__ == "__main__":
    main()
