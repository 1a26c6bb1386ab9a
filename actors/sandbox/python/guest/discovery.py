"""What a program is told of this guest, beside the tools that the host offers.

It is the guest's to say, because a session stays on its guest, and hears the same in every replay.
"""

from __future__ import annotations

from typing import Any

from guest import promised, refusals
from guest.system.file_tree import BYTES_MAX, HOME, TREE

__all__ = ["LIMITS", "NAMES", "POLICY", "policy"]

POLICY = "current_policy"
NAMES = ("list_tools", "describe_tool", POLICY)
"""Tools that touch nothing."""
LIMITS = "current limits"
"""What the host is asked for the limits of the run. No tool can have this name."""


def policy(said: dict[str, Any], limits: dict[str, Any]) -> dict[str, Any]:
    """The host's policy, and what this guest has: files, modules, packages, limits."""
    tools = said.pop("tools", [])
    return said | {
        "files": {"folder": HOME, "size_bytes_max": BYTES_MAX, "size_bytes": TREE.bytes_used},
        "modules": list(promised.MODULES),
        "modules_refused": refusals.refused_names(),
        "packages": [],
        "limits": limits,
        "tools": tools,
    }
