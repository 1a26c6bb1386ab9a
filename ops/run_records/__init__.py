"""The records of runs, as an operator exports them, and the proof of one run."""

from __future__ import annotations

from rookery.ops.run_records.run_proof import ProofParts, prove_run
from rookery.ops.run_records.run_records import RunRecords

__all__ = ["ProofParts", "RunRecords", "prove_run"]
