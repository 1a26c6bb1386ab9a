"""The policy that a program can query: the host's part, and the guest's files and modules.

The guest adds its own part, because a session stays on its guest build: every replay gets the same.
"""

from __future__ import annotations

from typing import Any

from guest import refusals, standard_modules
from guest.system.file_tree import BYTES_MAX, HOME, TEMPORARY, TREE
from guest.system.packages import PACKAGES

__all__ = ["LIMITS", "NAMES", "POLICY", "policy"]

POLICY = "current_policy"
NAMES = ("list_tools", "describe_tool", POLICY)
"""Tools without side effects."""
LIMITS = "current limits"
"""The call that returns the limits of the run. It is not a valid name of a tool."""


def policy(host_policy: dict[str, Any], limits: dict[str, Any]) -> dict[str, Any]:
    """Add the guest's files, modules, packages and the run's limits to the host's policy."""
    tools = host_policy.pop("tools", [])
    return host_policy | {
        "files": {
            "folder": HOME,
            "temporary_folder": TEMPORARY,
            "size_bytes_max": BYTES_MAX,
            "size_bytes": TREE.bytes_used,
        },
        "modules": list(standard_modules.MODULES),
        "modules_refused": refusals.refused_names(),
        "packages": PACKAGES.listed,
        "limits": limits,
        "tools": tools,
    }
