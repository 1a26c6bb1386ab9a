"""The tool of the coder: what it merges, a person has approved. ``README.md`` says what to type.

It writes one line per merge to a file, which shows that each happened once.
"""

from __future__ import annotations

import os
from pathlib import Path

from rookery.actors import tool
from rookery.actors.tools import ToolRegistry
from rookery.schemas.calls import ApprovalMode
from rookery.schemas.run import SideEffect

__all__ = ["merge", "registry"]

LOG = Path(os.environ.get("MERGED", "merged.txt"))


@tool(side_effect=SideEffect.WRITE, idempotent=False, approval_policy=ApprovalMode.MANUAL)
def merge(file: str, text: str) -> str:
    """Merge a changed file. An approver has to approve each merge first."""
    with LOG.open("a", encoding="utf-8") as log:
        log.write(f"{file}: {len(text)} characters\n")
    return f"merged {file}"


registry = ToolRegistry.of(merge)
