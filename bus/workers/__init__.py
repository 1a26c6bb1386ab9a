"""Calls between nodes and the processes that serve tools."""
