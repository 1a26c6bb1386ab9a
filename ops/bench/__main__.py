"""``python -m rookery.ops.bench ROLE TASK``: one process of a bench, started by the bench."""

from __future__ import annotations

import sys
from pkgutil import resolve_name

import msgspec

from rookery.ops.bench.task import Task

__all__: list[str] = []

_ROLES = {
    "load": "rookery.ops.bench.load:generate",
    "turns": "rookery.ops.bench.node:serve_turns",
    "whole": "rookery.ops.bench.node:serve_whole",
    "driving": "rookery.ops.bench.node:serve_driving",
    "memory": "rookery.ops.bench.sandbox_memory:tell",
}
"""By name: a load generator has no use for a node's imports, which take as long as its start."""

if __name__ == "__main__":
    _role, _text = sys.argv[1:]
    resolve_name(_ROLES[_role])(msgspec.json.decode(_text, type=Task))
