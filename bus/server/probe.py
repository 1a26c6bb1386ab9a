"""Whether a NATS server accepts a credential, by one connection without a client."""

from __future__ import annotations

import json
import socket
from urllib.parse import urlsplit

__all__ = ["is_accepted"]

_TIMEOUT_S = 2.0


def is_accepted(address: str, user: str, password: str) -> bool:
    """``False`` also if no server replies there."""
    place = urlsplit(address)
    hello = {"user": user, "pass": password, "verbose": False, "pedantic": False}
    try:
        with socket.create_connection((place.hostname, place.port), _TIMEOUT_S) as client:
            client.sendall(b"CONNECT " + json.dumps(hello).encode() + b"\r\nPING\r\n")
            received = b""
            while b"PONG" not in received and b"-ERR" not in received:
                piece = client.recv(4_096)
                if not piece:
                    return False
                received += piece
    except OSError:
        return False
    return b"-ERR" not in received
