"""Peers: what other agents send a session, what it asks of them, and how both are shown."""
