"""The NATS connection: nats-py, with batched frames, reply inboxes and JetStream's codes."""

from rookery.bus.nats.batch_client import Message, Outgoing, header_value
from rookery.bus.nats.connection import Connection
from rookery.bus.nats.jetstream_api import (
    CONSUMER_NOT_FOUND,
    STREAM_NOT_FOUND,
    AckVerdict,
    ApiError,
    decode_ack,
)
from rookery.bus.nats.nkeys import verify_nkey
from rookery.bus.nats.reply_inbox import ReplyInbox
from rookery.bus.nats.server_access import ACCESS_VARIABLES, NO_ACCESS, ServerAccess, split_urls

__all__ = [
    "ACCESS_VARIABLES",
    "CONSUMER_NOT_FOUND",
    "NO_ACCESS",
    "STREAM_NOT_FOUND",
    "AckVerdict",
    "ApiError",
    "Connection",
    "Message",
    "Outgoing",
    "ReplyInbox",
    "ServerAccess",
    "decode_ack",
    "header_value",
    "split_urls",
    "verify_nkey",
]
