"""One NATS connection that receives and sends messages in batches.

nats-py does authentication, TLS and reconnecting. This file adds a receiver that delivers one list
of messages a socket read, a sender that writes a list at once, and requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec
import nats.errors

from rookery.bus.nats.batch_client import BatchClient, Subscription
from rookery.bus.nats.frames import Message, OnBatch, Outgoing, encode_frames, header_value
from rookery.bus.nats.jetstream_api import NO_RESPONDERS, ApiError, status_of
from rookery.bus.nats.reply_inbox import ReplyInbox
from rookery.schemas.errors import Failed, Refused

__all__ = [
    "ApiError",
    "Connection",
    "Message",
    "OnBatch",
    "Outgoing",
    "Subscription",
    "header_value",
]

_log = logging.getLogger(__name__)

_OPEN_TIMEOUT_S = 2.0
_RECONNECT_WAIT_S = 0.1
_PING_S = 10
_FLUSH_S = 2
"""A flush never ends if its connection is lost, so the connection is checked this often."""


class Connection:
    """A NATS connection; used on the event loop it was opened on."""

    def __init__(
        self,
        url: str,
        *,
        token: str = "",
        credentials: str = "",
        name: str = "rookery",
        ping_s: int = _PING_S,
    ) -> None:
        self.on_reconnect: list[Callable[[], None]] = []
        """Called after every reconnect, when all subscriptions are restored."""
        self.on_disconnect: list[Callable[[], None]] = []
        """Called when the connection is lost, after all open requests have failed."""
        self._target = _target(url, token)
        if credentials:
            _check_credentials(credentials)
        self._credentials, self._name, self._ping_s = credentials, name, ping_s
        self._is_up = False
        self._client = BatchClient(self._on_connection_lost)
        self.replies = ReplyInbox(self._client.new_inbox())
        """Reply subjects for requests with more than one reply, or that survive a reconnect."""
        self._requests: set[asyncio.Future[Message]] = set()

    @property
    def connected(self) -> bool:
        return self._is_up and self._client.is_connected

    @property
    def client(self) -> Any:
        """The nats-py client, for uses without batches (server information, new inboxes)."""
        return self._client

    async def open(self) -> None:
        """Connect; ``Failed`` SERVER_UNREACHABLE or ``Refused`` UNAUTHORIZED.

        After an error the connection cannot be opened again.
        """
        connecting = asyncio.create_task(self._connect())
        try:
            await asyncio.wait({connecting}, timeout=_OPEN_TIMEOUT_S)
            if not connecting.done():
                raise TimeoutError
            connecting.result()
        except BaseException as error:
            reason = self._client.last_error or error
            await _cancel(connecting)
            await self._client.close()
            if isinstance(error, (OSError, nats.errors.Error)):
                raise self._connect_error(reason) from error
            raise
        self._is_up = True
        await self.subscribe(self.replies.wildcard, self.replies.route)

    async def close(self) -> None:
        """Disconnect for good; open requests fail."""
        self._is_up = False
        self._fail_requests()
        with suppress(nats.errors.Error, OSError):
            await self._client.close()

    def reset(self) -> None:
        """Abort the socket and reconnect; bytes that the network has not taken are lost."""
        if self._is_up:
            self._client.reset()

    async def subscribe(self, subject: str, on_batch: OnBatch, *, queue: str = "") -> Subscription:
        """Call ``on_batch`` with the messages on ``subject``, one list a socket read.

        Returns when the server has the subscription; while disconnected, at once.
        """
        subscription = await self._client.subscribe_batched(subject, on_batch, queue)
        if self._client.write_now():
            await self.flush()
        return subscription

    async def flush(self) -> bool:
        """Wait until the server has handled all messages sent so far, and its own earlier messages
        have arrived; ``False`` if the connection is lost first."""
        while self.connected:
            with suppress(nats.errors.Error):
                await self._client.flush(_FLUSH_S)
                return True
            await asyncio.sleep(0)
        return False

    def send(self, messages: Sequence[Outgoing]) -> bool:
        """Write all messages now; ``False`` while disconnected, and they are never sent later.

        ``Refused`` if one of them is invalid; then none is sent. ``True`` does not promise
        arrival: only a reply proves it.
        """
        data = encode_frames(messages, self._client.max_payload)
        return self._is_up and self._client.write_now(data)

    async def request(self, message: Outgoing, *, timeout_s: float = 2.0) -> Message:
        """Send a request and return its reply.

        ``Failed`` SERVER_UNREACHABLE on timeout, disconnect or no responder. The ``reply`` of
        ``message`` is replaced.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Message] = loop.create_future()

        def on_reply(reply: Message) -> None:
            if not future.done():
                future.set_result(reply)

        with self.replies.listen(on_reply) as subject:
            if not self.send([message._replace(reply=subject)]):
                raise _unreachable("there is no connection to the server")
            self._requests.add(future)
            timer = loop.call_later(timeout_s, _expire, future, message.subject, timeout_s)
            try:
                reply = await future
            finally:
                timer.cancel()
                self._requests.discard(future)
        if status_of(reply) == NO_RESPONDERS:
            raise _unreachable(f"no process listens on {message.subject}")
        return reply

    async def api(
        self, subject: str, query: object = None, *, timeout_s: float = 5.0
    ) -> dict[str, Any]:
        """Request ``$JS.API.<subject>``; the decoded reply, or ``ApiError``."""
        body = b"" if query is None else msgspec.json.encode(query)
        message = await self.request(Outgoing(f"$JS.API.{subject}", body), timeout_s=timeout_s)
        reply = msgspec.json.decode(message.body, type=dict[str, Any])
        if error := reply.get("error"):
            raise ApiError(error.get("err_code", 0), error.get("description", ""))
        return reply

    async def _connect(self) -> None:
        options: dict[str, Any] = {
            "token": self._target.token,
            "user": self._target.user,
            "password": self._target.password,
            "user_credentials": self._credentials or None,
            "name": self._name,
            # `open` must report an unreachable or refusing server; later failures are retried.
            "allow_reconnect": False,
            "max_reconnect_attempts": -1,
            "reconnect_time_wait": _RECONNECT_WAIT_S,
            "ping_interval": self._ping_s,
            # Without this nats-py would send failed publishes after the reconnect.
            "pending_size": -1,
            "error_cb": self._report,
            "disconnected_cb": self._disconnected,
            "reconnected_cb": self._reconnected,
        }
        await self._client.connect(self._target.address, **options)
        if not self._client.is_connected:  # The server closed without a reason.
            raise nats.errors.UnexpectedEOF
        self._client.options["allow_reconnect"] = True

    def _connect_error(self, reason: BaseException) -> Refused | Failed:
        text = str(reason) or type(reason).__name__
        if "authorization" in text.lower() or "authentication" in text.lower():
            has_credentials = self._target.token or self._target.user or self._credentials
            return Refused(
                "UNAUTHORIZED",
                f"{self._target.address} "
                + (
                    "refuses these credentials"
                    if has_credentials
                    else "needs a token or credentials"
                ),
                hint="the token of an embedded server is in the file `token` of its store",
            )
        return _unreachable(f"no NATS server replies at {self._target.address}: {text}")

    def _fail_requests(self) -> None:
        for future in self._requests:
            if not future.done():
                future.set_exception(_unreachable("the connection was lost before the reply"))

    def _on_connection_lost(self) -> None:
        self._client.discard_pending()
        if not self._is_up:
            return
        self._is_up = False
        _log.warning("connection lost: server=%s", self._target.address)
        self._fail_requests()
        self.replies.wake_all()
        _call_all(self.on_disconnect)

    async def _disconnected(self) -> None:
        self._on_connection_lost()

    async def _reconnected(self) -> None:
        self._is_up = True
        _log.info("connection restored: server=%s", self._target.address)
        self.replies.wake_all()
        _call_all(self.on_reconnect)

    async def _report(self, error: Exception) -> None:
        """Log a permission violation as a warning, and failed reconnects for debugging only."""
        denied = "permissions violation" in str(error)
        _log.log(logging.WARNING if denied else logging.DEBUG, "%s", error)


class _Target(NamedTuple):
    """The server's address and the credentials."""

    address: str
    """The URL without secrets."""
    token: str | None = None
    user: str | None = None
    password: str | None = None


def _target(url: str, token: str) -> _Target:
    try:
        parts = urlsplit(url if "://" in url else f"nats://{url}")
        host, port = parts.hostname, parts.port or 4222
    except ValueError as error:
        raise Refused("INVALID_ARGUMENT", f"the server's URL is invalid: {error}") from error
    if parts.scheme not in ("nats", "tls") or not host:
        raise Refused("INVALID_ARGUMENT", "the server's URL must be nats:// or tls://host[:port]")
    address = f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port}"
    if parts.password is not None and not token:
        return _Target(address, None, unquote(parts.username or ""), unquote(parts.password))
    return _Target(address, token or unquote(parts.username or "") or None)


def _check_credentials(path: str) -> None:
    if not Path(path).is_file():
        raise Refused("UNAUTHORIZED", f"the credentials file {path} does not exist")
    if find_spec("nkeys") is None:
        raise Refused(
            "UNAUTHORIZED",
            "a credentials file needs the package nkeys, which is not installed",
            hint="pip install 'nats-py[nkeys]'",
        )


def _expire(future: asyncio.Future[Message], subject: str, timeout_s: float) -> None:
    if not future.done():
        future.set_exception(_unreachable(f"no reply on {subject} within {timeout_s} s"))


def _unreachable(message: str) -> Failed:
    return Failed("SERVER_UNREACHABLE", message)


async def _cancel(connecting: asyncio.Task[None]) -> None:
    """Cancel until the task ends: before Python 3.12 ``wait_for`` swallows a cancellation at the
    end of an attempt, and nats-py begins the next one."""
    while not connecting.done():
        connecting.cancel()
        await asyncio.wait({connecting}, timeout=_RECONNECT_WAIT_S)
    if not connecting.cancelled():
        connecting.exception()  # Marks the error as retrieved; the first error is reported.


def _call_all(calls: Sequence[Callable[[], None]]) -> None:
    for call in tuple(calls):
        try:
            call()
        except Exception:
            _log.exception("a connection hook failed")
