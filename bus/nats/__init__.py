"""The NATS connection: nats-py, with batched frames, reply inboxes and reads of stored messages."""

from rookery.bus.nats.batch_client import Message, Outgoing, header_value
from rookery.bus.nats.connection import Connection
from rookery.bus.nats.reply_inbox import ReplyInbox

__all__ = ["Connection", "Message", "Outgoing", "ReplyInbox", "header_value"]
