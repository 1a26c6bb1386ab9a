"""Commands on their way to an owner: the request endpoint, the inbox and the timers."""

from __future__ import annotations

from rookery.bus.commands.command_messages import (
    CommandDecoder,
    command_headers,
    is_reply_subject,
)
from rookery.bus.commands.inbox import JetStreamInbox

__all__ = ["CommandDecoder", "JetStreamInbox", "command_headers", "is_reply_subject"]
