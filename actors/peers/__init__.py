"""Peers: requests and messages between a session and other agents. Not joined to runs yet."""
