"""One NATS connection, made for batches: nats-py keeps tokens, TLS and reconnecting, this file adds
a receiver that hands over a *list* of messages a socket read and a sender that writes a list at
once. It knows no streams, no subjects and no JetStream beyond asking its API.
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

_OPEN_PATIENCE_S = 2.0
_RECONNECT_WAIT_S = 0.1
_PING_S = 10
_FLUSH_S = 2
"""A flush whose connection was lost waits in vain; so often it is looked for."""


class Connection:
    """To be used on the event loop it was opened on."""

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
        """Called after every reconnect, subscriptions being back in place."""
        self.on_disconnect: list[Callable[[], None]] = []
        """Called when the connection is lost; requests under way have failed by then."""
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
        """The nats-py client, for what needs no batches (key-value, object store, management)."""
        return self._client

    async def open(self) -> None:
        """Connect; ``Failed`` SERVER_UNREACHABLE or ``Refused`` UNAUTHORIZED.

        A connection that could not be opened is of no further use.
        """
        connecting = asyncio.create_task(self._connect())
        try:
            await asyncio.wait({connecting}, timeout=_OPEN_PATIENCE_S)
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
        """Disconnect for good; requests under way fail."""
        self._is_up = False
        self._fail_requests()
        with suppress(nats.errors.Error, OSError):
            await self._client.close()

    def reset(self) -> None:
        """Give this connection up and make another: what the network has not taken is lost."""
        if self._is_up:
            self._client.reset()

    async def subscribe(self, subject: str, on_batch: OnBatch, *, queue: str = "") -> Subscription:
        """From now on ``on_batch`` gets what arrives on ``subject``: one list a socket read.

        Connected, it returns when the server knows of it; else it takes effect on reconnect.
        """
        subscription = await self._client.subscribe_batched(subject, on_batch, queue)
        if self._client.write_now():
            await self.flush()
        return subscription

    async def flush(self) -> bool:
        """Wait until the server has handled what was sent, and what it had sent before that has
        arrived; ``False`` if the connection is lost first."""
        while self.connected:
            with suppress(nats.errors.Error):
                await self._client.flush(_FLUSH_S)
                return True
            await asyncio.sleep(0)
        return False

    def send(self, messages: Sequence[Outgoing]) -> bool:
        """Write all, now. ``False`` and nothing sent while disconnected (never sent later).

        ``Refused`` if one of them cannot be sent; none is sent then. ``True`` promises nothing
        about arrival: whoever needs to know asks for an answer.
        """
        data = encode_frames(messages, self._client.max_payload)
        return self._is_up and self._client.write_now(data)

    async def request(self, message: Outgoing, *, timeout_s: float = 2.0) -> Message:
        """One answer; ``Failed`` SERVER_UNREACHABLE on timeout, disconnect or no responder.

        The ``reply`` of ``message`` is replaced by our own inbox.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Message] = loop.create_future()

        def on_reply(reply: Message) -> None:
            if not answer.done():
                answer.set_result(reply)

        with self.replies.listen(on_reply) as subject:
            if not self.send([message._replace(reply=subject)]):
                raise _unreachable("there is no connection to the server")
            self._requests.add(answer)
            timer = loop.call_later(timeout_s, _expire, answer, message.subject, timeout_s)
            try:
                answered = await answer
            finally:
                timer.cancel()
                self._requests.discard(answer)
        if status_of(answered) == NO_RESPONDERS:
            raise _unreachable(f"nobody listens on {message.subject}")
        return answered

    async def api(
        self, subject: str, query: object = None, *, timeout_s: float = 5.0
    ) -> dict[str, Any]:
        """Ask ``$JS.API.<subject>``; the decoded answer, or ``ApiError``."""
        body = b"" if query is None else msgspec.json.encode(query)
        message = await self.request(Outgoing(f"$JS.API.{subject}", body), timeout_s=timeout_s)
        answer = msgspec.json.decode(message.body, type=dict[str, Any])
        if error := answer.get("error"):
            raise ApiError(error.get("err_code", 0), error.get("description", ""))
        return answer

    async def _connect(self) -> None:
        options: dict[str, Any] = {
            "token": self._target.token,
            "user": self._target.user,
            "password": self._target.password,
            "user_credentials": self._credentials or None,
            "name": self._name,
            # Nobody there, or nobody who lets us in, is an answer to `open`; later it is not.
            "allow_reconnect": False,
            "max_reconnect_attempts": -1,
            "reconnect_time_wait": _RECONNECT_WAIT_S,
            "ping_interval": self._ping_s,
            # Else a publish that failed while disconnected would be sent after the reconnect.
            "pending_size": -1,
            "error_cb": self._report,
            "disconnected_cb": self._disconnected,
            "reconnected_cb": self._reconnected,
        }
        await self._client.connect(self._target.address, **options)
        if not self._client.is_connected:  # It hung up without saying why.
            raise nats.errors.UnexpectedEOF
        self._client.options["allow_reconnect"] = True

    def _connect_error(self, reason: BaseException) -> Refused | Failed:
        text = str(reason) or type(reason).__name__
        if "authorization" in text.lower() or "authentication" in text.lower():
            given = self._target.token or self._target.user or self._credentials
            return Refused(
                "UNAUTHORIZED",
                f"{self._target.address} "
                + ("refuses our credentials" if given else "wants a token or credentials"),
                hint="an embedded server keeps its token in the file `token` of its store",
            )
        return _unreachable(f"no NATS server answers at {self._target.address}: {text}")

    def _fail_requests(self) -> None:
        for answer in self._requests:
            if not answer.done():
                answer.set_exception(_unreachable("the connection was lost before the answer"))

    def _on_connection_lost(self) -> None:
        self._client.discard_pending()
        if not self._is_up:
            return
        self._is_up = False
        _log.warning("lost the connection to %s", self._target.address)
        self._fail_requests()
        self.replies.wake_all()
        _call_all(self.on_disconnect)

    async def _disconnected(self) -> None:
        self._on_connection_lost()

    async def _reconnected(self) -> None:
        self._is_up = True
        _log.info("connected to %s again", self._target.address)
        self.replies.wake_all()
        _call_all(self.on_reconnect)

    async def _report(self, error: Exception) -> None:
        """While reconnecting every attempt ends here; what the server forbids is news."""
        denied = "permissions violation" in str(error)
        _log.log(logging.WARNING if denied else logging.DEBUG, "%s", error)


class _Target(NamedTuple):
    """Where to connect and as whom."""

    address: str
    """The URL without anything secret."""
    token: str | None = None
    user: str | None = None
    password: str | None = None


def _target(url: str, token: str) -> _Target:
    try:
        parts = urlsplit(url if "://" in url else f"nats://{url}")
        host, port = parts.hostname, parts.port or 4222
    except ValueError as error:
        raise Refused("INVALID_ARGUMENT", f"the server's URL is not one: {error}") from error
    if parts.scheme not in ("nats", "tls") or not host:
        raise Refused("INVALID_ARGUMENT", "the server's URL must be nats:// or tls://host[:port]")
    address = f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port}"
    if parts.password is not None and not token:
        return _Target(address, None, unquote(parts.username or ""), unquote(parts.password))
    return _Target(address, token or unquote(parts.username or "") or None)


def _check_credentials(path: str) -> None:
    if not Path(path).is_file():
        raise Refused("UNAUTHORIZED", f"there is no credentials file {path}")
    if find_spec("nkeys") is None:
        raise Refused(
            "UNAUTHORIZED",
            "a credentials file needs the package nkeys",
            hint="pip install 'nats-py[nkeys]'",
        )


def _expire(answer: asyncio.Future[Message], subject: str, timeout_s: float) -> None:
    if not answer.done():
        answer.set_exception(_unreachable(f"no answer on {subject} within {timeout_s} s"))


def _unreachable(message: str) -> Failed:
    return Failed("SERVER_UNREACHABLE", message)


async def _cancel(connecting: asyncio.Task[None]) -> None:
    """Until it is over: a cancellation that meets the end of an attempt is swallowed by
    ``wait_for`` (before Python 3.12), and nats-py goes on to the next one."""
    while not connecting.done():
        connecting.cancel()
        await asyncio.wait({connecting}, timeout=_RECONNECT_WAIT_S)
    if not connecting.cancelled():
        connecting.exception()  # Why this attempt failed as well is nobody's concern.


def _call_all(calls: Sequence[Callable[[], None]]) -> None:
    for call in tuple(calls):
        try:
            call()
        except Exception:
            _log.exception("a hook of the connection failed")
