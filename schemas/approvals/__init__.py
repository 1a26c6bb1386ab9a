"""Approvals: their lifecycle, decisions, records and lists."""
