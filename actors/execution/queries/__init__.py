"""Queries that read a session's history: validate, snapshot, fork, replay and destroy."""
