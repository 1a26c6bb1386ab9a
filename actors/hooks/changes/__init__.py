"""What becomes of a call, or of a run, by what hooks have said of it.

``call_changes`` applies the answers to a call, ``run_changes`` to the inputs, retries and ends of a
run. The decider of turns derives both again from the recorded facts.
"""

from __future__ import annotations

from rookery.actors.hooks.changes.call_changes import call_verdict, outcome_after_hooks
from rookery.actors.hooks.changes.run_changes import check_recorded, injected_inputs, run_ending

__all__ = ["call_verdict", "check_recorded", "injected_inputs", "outcome_after_hooks", "run_ending"]
