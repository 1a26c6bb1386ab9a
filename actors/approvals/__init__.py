"""Approvals: what waits for somebody's word, and what was said."""
