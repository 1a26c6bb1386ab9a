"""Turns: how a run is driven from its start to exactly one end."""
