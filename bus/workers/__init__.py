"""Calls between nodes and tool workers."""
