"""Loads that the suites put on a node, a journal or a sandbox."""
