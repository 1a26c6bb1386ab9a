"""Turns: the state machine of a run, from its start to exactly one end."""
