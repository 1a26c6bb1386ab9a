"""Approvals: questions to approvers about calls, their decisions, and the grants these issue."""
