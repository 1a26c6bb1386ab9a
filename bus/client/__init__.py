"""The client of a realm: runs, approvals and sessions over NATS."""

from __future__ import annotations

from rookery.bus.client.client import Client, Handle
from rookery.bus.client.handle import AnswerText, read_past_result
from rookery.bus.client.realm_methods import read_arguments

__all__ = ["AnswerText", "Client", "Handle", "read_arguments", "read_past_result"]
