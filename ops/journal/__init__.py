"""The journal as an operator sees it: the check of its messages, anchors, and proofs of runs."""

from rookery.ops.journal.anchor import read_anchor
from rookery.ops.journal.damage import DefectKind, damage_words
from rookery.ops.journal.forged_approvals import find_forged_approvals
from rookery.ops.journal.journal_check import JournalCheck
from rookery.ops.journal.node_log import NodeKeys
from rookery.ops.journal.run_proof import ProofParts, prove_run
from rookery.ops.journal.run_records import RunRecords

__all__ = [
    "DefectKind",
    "JournalCheck",
    "NodeKeys",
    "ProofParts",
    "RunRecords",
    "damage_words",
    "find_forged_approvals",
    "prove_run",
    "read_anchor",
]
