"""The NATS connection: nats-py, with batched frames, reply inboxes and JetStream's codes."""

from rookery.bus.nats.batch_client import Subscription
from rookery.bus.nats.connection import Connection
from rookery.bus.nats.direct_get import DirectPage, direct_page, exchange, page_of, page_query
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
from rookery.bus.nats.jwt import (
    account_jwt,
    credentials_text,
    operator_jwt,
    user_jwt,
)
from rookery.bus.nats.nkeys import KEY_BYTES, NKey, NKeyKind, verify_nkey
from rookery.bus.nats.reply_inbox import PendingReply, ReplyInbox
from rookery.bus.nats.server_access import (
    ACCESS_VARIABLES,
    NO_ACCESS,
    ServerAccess,
    access_from_environment,
    split_urls,
)

__all__ = [
    "ACCESS_VARIABLES",
    "CONSUMER_NOT_FOUND",
    "EXPECTED_SEQUENCE",
    "EXPECTED_SUBJECT",
    "KEY_BYTES",
    "MESSAGE_ID",
    "MESSAGE_NOT_FOUND",
    "NO_ACCESS",
    "NO_RESPONDERS",
    "STREAM_NAME_IN_USE",
    "STREAM_NOT_FOUND",
    "AckVerdict",
    "ApiError",
    "Connection",
    "DeliveryInfo",
    "DirectPage",
    "Message",
    "NKey",
    "NKeyKind",
    "OnBatch",
    "Outgoing",
    "PendingReply",
    "ReplyInbox",
    "ServerAccess",
    "Subscription",
    "access_from_environment",
    "account_jwt",
    "credentials_text",
    "decode_ack",
    "delivery_info",
    "direct_page",
    "exchange",
    "header_value",
    "operator_jwt",
    "page_of",
    "page_query",
    "split_urls",
    "status_of",
    "user_jwt",
    "verify_nkey",
]
