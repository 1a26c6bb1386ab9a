"""The client of a realm: runs, approvals and sessions over NATS."""

from rookery.bus.client.client import ABSENCE_S_MAX, Client, Fields, Handle, new_id
from rookery.bus.client.external_service import NatsExternalService
from rookery.bus.client.handle import AnswerText, OutputFeed, PrintedText, read_past_result
from rookery.bus.client.realm_methods import read_arguments

__all__ = [
    "ABSENCE_S_MAX",
    "AnswerText",
    "Client",
    "Fields",
    "Handle",
    "NatsExternalService",
    "OutputFeed",
    "PrintedText",
    "new_id",
    "read_arguments",
    "read_past_result",
]
