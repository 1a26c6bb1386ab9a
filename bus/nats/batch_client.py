"""nats-py's client, extended for batches, and the encoding of NATS messages. This is the only file
that uses nats-py's private names.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple

from nats.aio.client import Client
from nats.aio.subscription import Subscription as PlainSubscription
from nats.aio.transport import TcpTransport
from nats.errors import Error, ProtocolError
from nats.protocol.parser import Parser

from rookery.bus.server_access import NonceProof, ServerAccess
from rookery.bus.subjects import hide_tokens
from rookery.schemas.errors import Refused

__all__ = [
    "BatchClient",
    "BatchParser",
    "Message",
    "OnBatch",
    "Outgoing",
    "Subscription",
    "encode_frames",
    "header_value",
]

# --- frames ---------------------------------------------------------------------------------------

# NATS messages, and their encoding: a list of messages becomes one write.
#
# The encoder refuses every message for which the server would close the connection, or which it
# would read as two, because other callers share the connection.


_CONTROL_LINE_BYTES_MAX = 4096
"""For a longer line the server closes the connection (its ``max_control_line``)."""


class Message(NamedTuple):
    """One delivered message."""

    subject: str
    reply: str
    header: bytes
    """The raw header block with its version line; empty if there is none."""
    body: bytes


class Outgoing(NamedTuple):
    """One message to publish."""

    subject: str
    body: bytes
    reply: str = ""
    headers: Sequence[tuple[str, str]] = ()


OnBatch = Callable[[list[Message]], None]


def header_value(header: bytes, name: bytes) -> str:
    """The value of a header, empty if it is missing; names are case-sensitive."""
    needle = _needle(name)
    at = header.find(needle)
    if at < 0:
        return ""
    at += len(needle)
    return header[at : header.find(b"\r\n", at)].strip().decode(errors="replace")


@lru_cache
def _needle(name: bytes) -> bytes:
    return b"\r\n%b:" % name


def encode_frames(messages: Sequence[Outgoing], payload_bytes_max: int) -> bytes:
    """Encode all messages, or raise ``Refused`` if one of them is invalid."""
    pieces: list[bytes] = []
    for subject, body, reply, headers in messages:
        _check_subject(subject)
        if reply:
            _check_subject(reply)
        block = _header_block(headers) if headers else b""
        size = len(block) + len(body)
        if size > payload_bytes_max:
            raise Refused(
                "PAYLOAD_TOO_LARGE",
                f"{size} bytes of headers and body for {hide_tokens(subject)!r}; "
                f"the server accepts {payload_bytes_max}",
            )
        sizes = f"{len(block)} {size}" if block else str(size)
        line = f"{'HPUB' if block else 'PUB'} {subject} {reply} {sizes}\r\n".encode()
        if len(line) > _CONTROL_LINE_BYTES_MAX:
            raise Refused(
                "INVALID_SUBJECT", f"the subject {hide_tokens(subject)[:80]!r}... is too long"
            )
        pieces += (line, block, body, b"\r\n")
    return b"".join(pieces)


def _check_subject(subject: str) -> None:
    if subject.split() != [subject]:
        raise Refused(
            "INVALID_SUBJECT", f"subject {hide_tokens(subject)[:80]!r} is empty or contains spaces"
        )


def _header_block(headers: Sequence[tuple[str, str]]) -> bytes:
    lines = ["NATS/1.0"]
    for name, value in headers:
        if ":" in name or name.split() != [name]:
            raise Refused("INVALID_ARGUMENT", f"{name[:80]!r} is not a valid header name")
        if "\r" in value or "\n" in value:
            raise Refused("INVALID_ARGUMENT", f"the value of header {name} contains a line break")
        lines.append(f"{name}: {value}")
    return "\r\n".join((*lines, "", "")).encode()


# --- batch client ---------------------------------------------------------------------------------

# The parser handles the frames of batched subscriptions and passes all other frames, whole, to
# nats-py's parser. The client writes at once, discards the bytes that a lost connection left
# unwritten, and reconnects for ever. A test pins every private name used here.


_log = logging.getLogger(__name__)

_READ_BYTES_MAX = 1024 * 1024
"""Of one read, and so of one batch; nats-py reads 32 KiB at a time."""

_CLOSE_TIMEOUT_S = 0.5
"""A frozen server never answers the TLS close, and a server whose certificate was refused never
completes it."""

_LINE_BYTES_MAX = 1024 * 1024
"""A NATS server never sends a longer line."""

_NO_LINGER = struct.pack("ii", 1, 0)

_M, _H, _ERROR = b"MH-"
"""Only the server's MSG, HMSG and -ERR lines begin with these bytes."""


class BatchParser(Parser):
    """nats-py's parser with a fast path: one call a socket read for each batched subscription."""

    def __init__(self, client: Any, batched: Mapping[bytes, OnBatch]) -> None:
        super().__init__(client)
        self._batched = batched
        """By subscription id, as it is on the wire."""

    def reset(self) -> None:
        """Discard the incomplete frame of the connection before."""
        super().reset()
        self._chunks: list[bytes] = []
        self._missing = 0
        """How many bytes the incomplete frame lacks at least. Joining the chunks earlier would
        make the cost of a large message grow with the square of its size."""
        self._errors: list[str] = []

    def pop_error(self) -> str:
        """The server's oldest error line since the last call, as it was sent: nats-py's parser
        passes it on in lower case, in which two subjects may be one. Empty if there is none."""
        return self._errors.pop(0) if self._errors else ""

    async def parse(self, data: bytes = b"") -> None:
        """Deliver the frames that ``data`` completes; invalid bytes end the connection.

        A server that sends anything is there, although its PONG may be behind much else.
        """
        self.nc._pings_outstanding = 0
        self._chunks.append(data)
        self._missing -= len(data)
        if self._missing > 0:
            return
        try:
            batches, others = self._split(b"".join(self._chunks))
            for sid, batch in batches.items():
                self._deliver(sid, batch)
            if others:
                await super().parse(others)
        except Exception as error:
            _log.warning("invalid bytes from the server: %r", error)
            raise ProtocolError from error

    def _split(self, data: bytes) -> tuple[dict[bytes, list[Message]], bytes]:
        """Split into messages of batched subscriptions, by id, and all other frames."""
        batches: dict[bytes, list[Message]] = {}
        others: list[bytes] = []
        at, size, self._missing = 0, len(data), 0
        while (line_end := data.find(b"\r\n", at)) >= 0:
            end = line_end + 2
            if (kind := data[at]) in (_M, _H):
                words = data[at:line_end].split()
                start, end = end, end + int(words[-1]) + 2
                if end > size:
                    self._missing = end - size
                    break
                if words[2] in self._batched:
                    message = _message(words, data[start : end - 2], has_header=kind == _H)
                    batches.setdefault(words[2], []).append(message)
                    at = end
                    continue
            elif kind == _ERROR:
                self._errors.append(data[at:line_end].decode(errors="replace"))
            others.append(data[at:end])
            at = end
        if not self._missing and size - at > _LINE_BYTES_MAX:
            raise ProtocolError
        self._chunks = [data[at:]]
        return batches, b"".join(others)

    def _deliver(self, sid: bytes, batch: list[Message]) -> None:
        on_batch = self._batched.get(sid)
        if on_batch is None:  # Cancelled while the batch before was handled.
            return
        try:
            on_batch(batch)
        except Exception:
            _log.exception("a handler failed: messages=%d subject=%s", len(batch), batch[0].subject)


def _message(words: list[bytes], payload: bytes, *, has_header: bool) -> Message:
    """A message from the words of ``MSG subject id [reply] size``; ``HMSG`` has a header size."""
    subject = words[1].decode(errors="replace")
    if has_header:
        reply = words[3].decode(errors="replace") if len(words) == 6 else ""
        body_at = int(words[-2])
        return Message(subject, reply, payload[:body_at], payload[body_at:])
    reply = words[3].decode(errors="replace") if len(words) == 5 else ""
    return Message(subject, reply, b"", payload)


class Subscription:
    """A batched subscription; survives reconnects."""

    def __init__(self, batched: dict[bytes, OnBatch], sid: bytes, plain: PlainSubscription) -> None:
        self._batched, self._sid, self._plain = batched, sid, plain

    async def unsubscribe(self) -> None:
        """Unsubscribe at the server; messages on their way are delivered until ``cancel``."""
        with suppress(Error):
            await self._plain.unsubscribe()

    async def cancel(self) -> None:
        """Deliver nothing from now on; may be repeated."""
        self._batched.pop(self._sid, None)
        await self.unsubscribe()


class BatchClient(Client):
    """nats-py's client, with batched subscriptions beside its own."""

    def __init__(self, on_lost: Callable[[], None], access: ServerAccess) -> None:
        super().__init__()
        self._access = access
        self._inbox_prefix = bytearray(access.inbox_prefix.encode())
        self._batched: dict[bytes, OnBatch] = {}
        self._ps = self._parser = BatchParser(self, self._batched)
        self._on_connection_lost = on_lost

    async def subscribe_batched(self, subject: str, on_batch: OnBatch, queue: str) -> Subscription:
        """Subscribe; ``on_batch`` gets one list of messages a socket read."""
        plain = await self.subscribe(subject, queue=queue)
        sid = b"%d" % plain._id
        self._batched[sid] = on_batch
        return Subscription(self._batched, sid, plain)

    @property
    def has_cluster(self) -> bool:
        return bool(self._server_info.get("cluster"))

    @property
    def advertised(self) -> frozenset[str]:
        """Hosts and ports of the cluster's servers, as the server in use knew them when it was
        connected to; none if it has no cluster."""
        return frozenset(self._server_info.get("connect_urls") or ())

    def write_now(self, data: bytes = b"") -> bool:
        """Write nats-py's pending bytes, then ``data``; ``False`` if disconnected."""
        if not self.is_connected or not isinstance(self._transport, _Transport):
            return False
        if self._pending:
            data = b"".join((*self._pending, data))
            self.discard_pending()
        return self._transport.write_now(data)

    def reset(self) -> None:
        """Abort the socket; nats-py then connects again."""
        if isinstance(self._transport, _Transport):
            self._transport.abort()

    def discard_pending(self) -> None:
        """Drop the unwritten bytes of a lost connection, so that the next never sends them."""
        self._pending, self._pending_data_size = [], 0

    async def _connect_to_server(self, s: Any) -> None:
        if self._transport is not None:
            # A half open transport: nats-py would leave it open.
            self._transport.close()  # type: ignore[no-untyped-call]
        s.last_attempt = time.monotonic()
        self._transport = _Transport()  # type: ignore[no-untyped-call]
        await self._transport.connect(s.uri, _READ_BYTES_MAX, self.options["connect_timeout"])

    @property
    def ssl_context(self) -> ssl.SSLContext:
        """Made from the files of this moment; an error here must not end reconnecting."""
        try:
            return self._access.tls_context()
        except Refused as error:
            raise Error(error.message) from None

    def _connect_command(self) -> bytes:
        """Check TLS before any secret is sent; an error here must not end reconnecting."""
        assert self._current_server is not None
        if self._current_server.uri.scheme == "tls" and not self._server_info.get("tls_required"):
            raise Error("the URL is tls://, but the server offers no TLS")
        try:
            self._prepare_proof(self._access.proof())
        except Refused as error:  # For example while the file is replaced.
            raise Error(error.message) from None
        command: bytes = super()._connect_command()
        return command

    def _prepare_proof(self, proof: NonceProof | None) -> None:
        """nats-py sends the signature of the server's nonce with the JWT or with the public key."""
        if proof is None:
            return
        self._auth_configured = True
        self._signature_cb, self._public_nkey = proof.sign, proof.key.public
        self._user_jwt_cb = proof.jwt.encode if proof.jwt else None

    async def _process_op_err(self, e: Exception) -> None:
        """Report the loss now; nats-py reports it only after closing the old socket."""
        self._on_connection_lost()
        await super()._process_op_err(e)

    async def _process_pong(self) -> None:
        """Accept the PONG of a flush that has timed out; nats-py would drop the connection."""
        if self._pongs and self._pongs[0].done():
            self._pongs.pop(0)
            self._pings_outstanding = 0
        else:
            await super()._process_pong()

    async def _process_err(self, err_msg: str) -> None:
        """Reconnect after every error; nats-py closes for good on most of them."""
        said = self._parser.pop_error().removeprefix("-ERR").strip() or err_msg
        error = Error(said.strip("'"))
        if "permissions violation" in err_msg:
            await self._error_cb(error)
            return
        _log.warning("the server closed the connection: %s", error)
        await self._process_op_err(error)


class _Transport(TcpTransport):
    """nats-py's transport with larger reads, immediate writes and abort."""

    async def read(self, buffer_size: int) -> bytes:
        data: bytes = await super().read(max(buffer_size, _READ_BYTES_MAX))
        return data

    async def wait_closed(self) -> None:
        """Wait for the close, shielded: nats-py cancels this task while reconnecting, and then
        waits for the same future."""
        await asyncio.wait_for(asyncio.shield(self._end()), _CLOSE_TIMEOUT_S)

    async def _end(self) -> None:
        with suppress(OSError):  # Of TLS, whose other end has gone.
            await super().wait_closed()  # type: ignore[no-untyped-call]

    async def connect_tls(self, *arguments: Any, **named: Any) -> None:
        await super().connect_tls(*arguments, **named)
        assert self._io_writer is not None
        # asyncio warns at the end of each connection whose protocol does not know of its TLS.
        protocol: Any = self._io_writer.transport.get_protocol()
        if protocol is not None:  # The server may have refused the certificate.
            protocol._over_ssl = True

    def abort(self) -> None:
        """Drop unsent bytes and send a TCP reset."""
        if self._io_writer is None or self._io_writer.is_closing():
            return
        if (found := self._io_writer.get_extra_info("socket")) is not None:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self._io_writer.transport.abort()

    def write_now(self, data: bytes) -> bool:
        """Write ``data``; ``False`` if the socket is closed."""
        if self._io_writer is None or self._io_writer.is_closing():
            return False
        self._io_writer.write(data)
        return True
