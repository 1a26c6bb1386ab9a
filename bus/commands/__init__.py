"""Commands on their way to an owner: the request endpoint, the inbox and the timers."""

from rookery.bus.commands.command_messages import CommandDecoder, command_headers
from rookery.bus.commands.inbox import JetStreamInbox
from rookery.bus.commands.request_endpoint import (
    Endpoint,
    EndpointStats,
    MicroService,
    MicroServiceResponder,
)

__all__ = [
    "CommandDecoder",
    "Endpoint",
    "EndpointStats",
    "JetStreamInbox",
    "MicroService",
    "MicroServiceResponder",
    "command_headers",
]
