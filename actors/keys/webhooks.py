"""Signatures of webhooks, following the Standard Webhooks specification.

HMAC-SHA256 with a shared secret over ``<id>.<timestamp>.<body>``, in three headers, for requests
and for answers. A signature is valid for five minutes around its timestamp, and its id once in that
time. It proves the sender of the message and nothing else.
"""

from __future__ import annotations

import binascii
import hmac
from base64 import b64decode, b64encode
from collections.abc import Mapping
from hashlib import sha256
from typing import Final, NamedTuple, Protocol

from rookery.schemas.errors import Refused

__all__ = ["TOLERANCE_MS", "PostWebhook", "ReplayGuard", "WebhookKey", "WebhookResponse"]

ID: Final = "webhook-id"
TIMESTAMP: Final = "webhook-timestamp"
SIGNATURE: Final = "webhook-signature"
TOLERANCE_MS: Final = 300_000

_PREFIX: Final = "whsec_"
_VERSION: Final = "v1,"
_SECRET_BYTES_MIN, _SECRET_BYTES_MAX = 24, 64
_ID_LENGTH_MAX: Final = 100


class WebhookKey:
    """A secret shared with a receiver."""

    def __init__(self, secret: str) -> None:
        """``secret`` is base64 of 24 to 64 bytes, with or without the prefix ``whsec_``."""
        try:
            self._key = b64decode(secret.removeprefix(_PREFIX), validate=True)
        except (binascii.Error, ValueError):
            self._key = b""
        if not _SECRET_BYTES_MIN <= len(self._key) <= _SECRET_BYTES_MAX:
            raise Refused(
                "CONFIG_INVALID",
                "the webhook's secret is not whsec_ and base64 of 24 to 64 bytes",
                hint="make one: echo whsec_$(head -c 32 /dev/urandom | base64)",
            )

    def sign(self, message_id: str, body: bytes, now_ms: int) -> dict[str, str]:
        """The three headers of ``body``."""
        at_s = str(now_ms // 1_000)
        signature = _VERSION + self._signature(message_id, at_s, body)
        return {ID: message_id, TIMESTAMP: at_s, SIGNATURE: signature}

    def verify(self, headers: Mapping[str, str], body: bytes, now_ms: int) -> str:
        """The id of the message; ``Refused`` if the signature or the timestamp is not valid. Names
        of ``headers`` are in lower case."""
        message_id, at_s = headers.get(ID, ""), headers.get(TIMESTAMP, "")
        if not 0 < len(message_id) <= _ID_LENGTH_MAX or not (at_s.isascii() and at_s.isdecimal()):
            raise _unsigned(f"the headers {ID}, {TIMESTAMP} and {SIGNATURE} are required")
        expected = self._signature(message_id, at_s, body).encode()
        signatures = headers.get(SIGNATURE, "").split(" ")
        if not any(
            hmac.compare_digest(one.removeprefix(_VERSION).encode(), expected)
            for one in signatures
            if one.startswith(_VERSION)
        ):
            raise _unsigned("the signature does not match the body, id and timestamp")
        if len(at_s) > len(str(now_ms)) or abs(now_ms - int(at_s) * 1_000) > TOLERANCE_MS:
            raise _unsigned(f"the timestamp is more than {TOLERANCE_MS // 1_000} s off")
        return message_id

    def _signature(self, message_id: str, at_s: str, body: bytes) -> str:
        signed = b".".join((message_id.encode(), at_s.encode(), body))
        return b64encode(hmac.digest(self._key, signed, sha256)).decode()


class ReplayGuard:
    """Accepts each message id once while its signature is valid."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def add(self, message_id: str, now_ms: int) -> bool:
        """Whether the id is new; marks it as used."""
        for old, at_ms in list(
            self._seen.items()
        ):  # In the order of insertion, so the oldest come first.
            if now_ms - at_ms <= 2 * TOLERANCE_MS:
                break
            del self._seen[old]
        if message_id in self._seen:
            return False
        self._seen[message_id] = now_ms
        return True

    def release(self, message_id: str) -> None:
        """Accept the id again: the outcome of its message is unknown."""
        self._seen.pop(message_id, None)


def _unsigned(message: str) -> Refused:
    return Refused("UNAUTHORIZED", message)


class WebhookResponse(NamedTuple):
    """The response to a post."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes


class PostWebhook(Protocol):
    """Port: posts to the URL."""

    async def __call__(self, headers: Mapping[str, str], body: bytes) -> WebhookResponse | None:
        """The response; ``None`` if no readable one arrived in time."""
