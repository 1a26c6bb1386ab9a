"""The NATS connection: nats-py, with batched frames, reply inboxes and JetStream's codes."""

from rookery.bus.nats.batch_client import Subscription
from rookery.bus.nats.connection import Connection
from rookery.bus.nats.direct_get import direct_page
from rookery.bus.nats.frames import Message, OnBatch, Outgoing, header_value
from rookery.bus.nats.jetstream_api import (
    CONSUMER_NOT_FOUND,
    EXPECTED_SEQUENCE,
    EXPECTED_SUBJECT,
    MESSAGE_ID,
    MESSAGE_NOT_FOUND,
    NO_RESPONDERS,
    STREAM_NAME_IN_USE,
    STREAM_NOT_FOUND,
    AckVerdict,
    ApiError,
    DeliveryInfo,
    decode_ack,
    delivery_info,
    status_of,
)
from rookery.bus.nats.reply_inbox import PendingReply

__all__ = [
    "CONSUMER_NOT_FOUND",
    "EXPECTED_SEQUENCE",
    "EXPECTED_SUBJECT",
    "MESSAGE_ID",
    "MESSAGE_NOT_FOUND",
    "NO_RESPONDERS",
    "STREAM_NAME_IN_USE",
    "STREAM_NOT_FOUND",
    "AckVerdict",
    "ApiError",
    "Connection",
    "DeliveryInfo",
    "Message",
    "OnBatch",
    "Outgoing",
    "PendingReply",
    "Subscription",
    "decode_ack",
    "delivery_info",
    "direct_page",
    "header_value",
    "status_of",
]
