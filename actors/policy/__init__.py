"""The policy of calls: which permissions a call needs, and whether it is allowed, asked or denied.

``subject`` says what a policy sees of a tool, ``decision`` decides by the settings, and
``run_policies`` holds the policies of a node's runs. The rules of calls ask it behind the rights of
the run and before an approval, so that it may only refuse or ask.
"""

from __future__ import annotations

from rookery.actors.policy.decision import Escalation, PolicyStep, RunPolicies, RunPolicy
from rookery.actors.policy.subject import PolicySubject

__all__ = ["Escalation", "PolicyStep", "PolicySubject", "RunPolicies", "RunPolicy"]
