"""nats-py's client, made for batches: the only file that touches its private names.

The parser takes the frames of batched subscriptions itself and leaves every other one, whole, to
nats-py's. The client writes at once, forgets what a lost connection left unwritten, and once
connected never gives up. A test pins every private name used here.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from nats.aio.client import Client
from nats.aio.subscription import Subscription as PlainSubscription
from nats.aio.transport import TcpTransport
from nats.errors import Error, ProtocolError
from nats.protocol.parser import Parser

from rookery.bus.nats.frames import Message, OnBatch

__all__ = ["BatchClient", "BatchParser", "Subscription"]

_log = logging.getLogger(__name__)

_READ_BYTES_MAX = 1024 * 1024
"""Of one read, and so of one batch; nats-py takes 32 KiB at a time."""

_CLOSE_PATIENCE_S = 0.5
"""A frozen server never answers the farewell of TLS, and one whose certificate was not taken never
ends it."""

_LINE_BYTES_MAX = 1024 * 1024
"""A line that is longer and still has no end is not a NATS server talking."""

_NO_LINGER = struct.pack("ii", 1, 0)

_M, _H = b"MH"
"""The server's lines that begin so are MSG and HMSG, and no others do."""


class BatchParser(Parser):
    """nats-py's parser with a fast path: one call a socket read for each batched subscription."""

    def __init__(self, client: Any, batched: Mapping[bytes, OnBatch]) -> None:
        super().__init__(client)
        self._batched = batched
        """By subscription id, as the server spells it."""

    def reset(self) -> None:
        """Forget what is half read: another connection begins."""
        super().reset()
        self._chunks: list[bytes] = []
        self._missing = 0
        """At least so many bytes to the end of the frame that is half read; joining the chunks
        any earlier would make a large message cost the square of its size."""

    async def parse(self, data: bytes = b"") -> None:
        """Deliver what ``data`` completes. Broken bytes end the connection, not the reading."""
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
            _log.warning("the server's bytes make no sense: %r", error)
            raise ProtocolError from error

    def _split(self, data: bytes) -> tuple[dict[bytes, list[Message]], bytes]:
        """Messages of batched subscriptions by id, and all other frames; the rest is kept back."""
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
            _log.exception("%d messages to %s were not handled", len(batch), batch[0].subject)


def _message(words: list[bytes], payload: bytes, *, has_header: bool) -> Message:
    """From the words of ``MSG subject id [reply] size``, or ``HMSG`` with the header's size."""
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
        """Let no more come; what is on its way is delivered until ``cancel``."""
        with suppress(Error):
            await self._plain.unsubscribe()

    async def cancel(self) -> None:
        """Nothing is delivered from now on. Cancelling again changes nothing."""
        self._batched.pop(self._sid, None)
        await self.unsubscribe()


class BatchClient(Client):
    """nats-py's client with batches beside its own subscriptions, which stay what they are."""

    def __init__(self, went_down: Callable[[], None]) -> None:
        super().__init__()
        self._batched: dict[bytes, OnBatch] = {}
        self._ps = BatchParser(self, self._batched)
        self._on_connection_lost = went_down

    async def subscribe_batched(self, subject: str, on_batch: OnBatch, queue: str) -> Subscription:
        """As ``subscribe``, delivering lists."""
        plain = await self.subscribe(subject, queue=queue)
        sid = b"%d" % plain._id
        self._batched[sid] = on_batch
        return Subscription(self._batched, sid, plain)

    def write_now(self, data: bytes = b"") -> bool:
        """Write what nats-py holds back, then ``data``: the wire keeps the order of the calls."""
        if not self.is_connected or not isinstance(self._transport, _Transport):
            return False
        if self._pending:
            data = b"".join((*self._pending, data))
            self.discard_pending()
        return self._transport.write_now(data)

    def reset(self) -> None:
        """The socket is closed without a farewell, and nats-py connects again."""
        if isinstance(self._transport, _Transport):
            self._transport.abort()

    def discard_pending(self) -> None:
        """What a lost connection left unwritten must not be written to the next one."""
        self._pending, self._pending_data_size = [], 0

    async def _connect_to_server(self, s: Any) -> None:
        if self._transport is not None:
            # Half made: nats-py would leave it open.
            self._transport.close()  # type: ignore[no-untyped-call]
        s.last_attempt = time.monotonic()
        self._transport = _Transport()  # type: ignore[no-untyped-call]
        await self._transport.connect(s.uri, _READ_BYTES_MAX, self.options["connect_timeout"])

    def _connect_command(self) -> bytes:
        """Checked before anything secret is sent, and never the end of reconnecting."""
        assert self._current_server is not None
        if self._current_server.uri.scheme == "tls" and not self._server_info.get("tls_required"):
            raise Error("the URL says tls://, but the server offers no TLS")
        try:
            command: bytes = super()._connect_command()
        except Exception as error:  # A credentials file that is just being replaced.
            raise Error(f"the credentials cannot be used: {error}") from error
        return command

    async def _process_op_err(self, e: Exception) -> None:
        """The connection is lost. nats-py tells so only when the old socket is closed."""
        self._on_connection_lost()
        await super()._process_op_err(e)

    async def _process_pong(self) -> None:
        """A PONG that is waited for no longer, for its flush took too long, is a PONG all the same:
        nats-py would take it for nonsense and drop the connection."""
        if self._pongs and self._pongs[0].done():
            self._pongs.pop(0)
            self._pings_outstanding = 0
        else:
            await super()._process_pong()

    async def _process_err(self, err_msg: str) -> None:
        """nats-py closes for good on most errors; we come back, whatever the server says."""
        error = Error(err_msg.strip("'"))
        if "permissions violation" in err_msg:
            await self._error_cb(error)
            return
        _log.warning("the server closes the connection: %s", error)
        await self._process_op_err(error)


class _Transport(TcpTransport):
    """Reads all that a burst left in the socket."""

    async def read(self, buffer_size: int) -> bytes:
        data: bytes = await super().read(max(buffer_size, _READ_BYTES_MAX))
        return data

    async def wait_closed(self) -> None:
        """Shielded, because closing while reconnecting cancels one who waits here and then waits
        itself: for a future that was cancelled with him."""
        farewell = super().wait_closed()  # type: ignore[no-untyped-call]
        await asyncio.wait_for(asyncio.shield(farewell), _CLOSE_PATIENCE_S)

    def abort(self) -> None:
        """The kernel drops what it has not sent, and the other end hears of a reset."""
        if self._io_writer is None or self._io_writer.is_closing():
            return
        if (found := self._io_writer.get_extra_info("socket")) is not None:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self._io_writer.transport.abort()

    def write_now(self, data: bytes) -> bool:
        """``False`` if the socket is known to be closed."""
        if self._io_writer is None or self._io_writer.is_closing():
            return False
        self._io_writer.write(data)
        return True
