"""Signatures of webhooks, as the Standard Webhooks specification has them.

HMAC-SHA256 with a shared secret over ``<id>.<timestamp>.<body>``, in three headers, both ways: what
we send and what comes back to us. A signature is good for five minutes around its timestamp, and
its id once in that time. Whether the person who answered may answer is not looked at here: that is
the broker's, by a signature of the person's own.
"""

from __future__ import annotations

import binascii
import hmac
from base64 import b64decode, b64encode
from collections.abc import Mapping
from hashlib import sha256
from typing import Final

from rookery.schemas.errors import Refused

__all__ = ["TOLERANCE_MS", "ReplayGuard", "WebhookKey"]

ID: Final = "webhook-id"
TIMESTAMP: Final = "webhook-timestamp"
SIGNATURE: Final = "webhook-signature"
TOLERANCE_MS: Final = 300_000

_PREFIX: Final = "whsec_"
_VERSION: Final = "v1,"
_SECRET_BYTES_MIN, _SECRET_BYTES_MAX = 24, 64
_ID_LENGTH_MAX: Final = 100


class WebhookKey:
    """A secret that two sides share."""

    def __init__(self, secret: str) -> None:
        """``secret`` is base64 of 24 to 64 bytes, with or without ``whsec_`` before it."""
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
        """What says who sent ``body``, and when."""
        at_s = str(now_ms // 1_000)
        signature = _VERSION + self._signature(message_id, at_s, body)
        return {ID: message_id, TIMESTAMP: at_s, SIGNATURE: signature}

    def verify(self, headers: Mapping[str, str], body: bytes, now_ms: int) -> str:
        """The id of what was sent; ``Refused`` if it was not signed with this key, or not now.
        Names of ``headers`` are in lower case."""
        message_id, at_s = headers.get(ID, ""), headers.get(TIMESTAMP, "")
        if not 0 < len(message_id) <= _ID_LENGTH_MAX or not (at_s.isascii() and at_s.isdecimal()):
            raise _unsigned(f"the headers {ID}, {TIMESTAMP} and {SIGNATURE} say who sends")
        expected = self._signature(message_id, at_s, body).encode()
        given = headers.get(SIGNATURE, "").split(" ")
        if not any(
            hmac.compare_digest(one.removeprefix(_VERSION).encode(), expected)
            for one in given
            if one.startswith(_VERSION)
        ):
            raise _unsigned("the signature is not one of this body, id and timestamp")
        if len(at_s) > len(str(now_ms)) or abs(now_ms - int(at_s) * 1_000) > TOLERANCE_MS:
            raise _unsigned(f"the timestamp is not of the last {TOLERANCE_MS // 1_000} s")
        return message_id

    def _signature(self, message_id: str, at_s: str, body: bytes) -> str:
        signed = b".".join((message_id.encode(), at_s.encode(), body))
        return b64encode(hmac.digest(self._key, signed, sha256)).decode()


class ReplayGuard:
    """Ids of messages, each let through once while its signature is good."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def add(self, message_id: str, now_ms: int) -> bool:
        """Whether it is new; from now on it is not."""
        for old, at_ms in list(self._seen.items()):  # Oldest first, as they were put in.
            if now_ms - at_ms <= 2 * TOLERANCE_MS:
                break
            del self._seen[old]
        if message_id in self._seen:
            return False
        self._seen[message_id] = now_ms
        return True

    def forget(self, message_id: str) -> None:
        """What came of it is unknown: it may come again."""
        self._seen.pop(message_id, None)


def _unsigned(message: str) -> Refused:
    return Refused("UNAUTHORIZED", message)
