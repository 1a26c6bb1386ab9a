"""The journal as an operator sees it: the check of its messages and signatures, and anchors."""

from __future__ import annotations

from rookery.ops.journal.anchor import Anchor
from rookery.ops.journal.damage import DefectKind
from rookery.ops.journal.forged_approvals import find_forged_approvals
from rookery.ops.journal.journal_check import JournalCheck
from rookery.ops.journal.node_log import NodeKeys

__all__ = [
    "Anchor",
    "DefectKind",
    "JournalCheck",
    "NodeKeys",
    "find_forged_approvals",
]
