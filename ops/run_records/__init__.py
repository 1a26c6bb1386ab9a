"""The records and trajectories of runs, as an operator exports them, and the proof of one run."""

from __future__ import annotations

from rookery.ops.run_records.run_proof import ProofParts, prove_run
from rookery.ops.run_records.run_records import RunRecords, decode_run_facts
from rookery.ops.run_records.trajectory import TrajectoryFold

__all__ = ["ProofParts", "RunRecords", "TrajectoryFold", "decode_run_facts", "prove_run"]
