"""Commands on their way to an owner: the request endpoint, the inbox and the timers."""

from rookery.bus.commands.decoder import CommandDecoder
from rookery.bus.commands.headers import command_headers
from rookery.bus.commands.inbox import JetStreamInbox
from rookery.bus.commands.micro_service import (
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
