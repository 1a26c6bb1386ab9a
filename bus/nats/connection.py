"""One NATS connection that receives and sends messages in batches.

nats-py does authentication, TLS and reconnecting. This file adds a receiver that delivers one list
of messages a socket read, a sender that writes a list at once, and requests.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from socket import gaierror
from typing import Any

import msgspec
import nats.errors

from rookery.bus.clock import entropy
from rookery.bus.jetstream_api import NO_RESPONDERS, ApiError, status_of
from rookery.bus.nats.batch_client import (
    BatchClient,
    Message,
    OnBatch,
    Outgoing,
    Subscription,
    encode_frames,
    header_value,
)
from rookery.bus.nats.reply_inbox import ReplyInbox
from rookery.bus.roles import inbox_of
from rookery.bus.server_access import INBOX_PREFIX, NO_ACCESS, ServerAccess, ServerTargets
from rookery.bus.subjects import hide_tokens
from rookery.schemas.errors import CodedError, Failed, Refused

__all__ = [
    "ApiError",
    "Connection",
    "Message",
    "OnBatch",
    "Outgoing",
    "Subscription",
    "header_value",
    "not_permitted",
]

_log = logging.getLogger(__name__)

_OPEN_TIMEOUT_S = 2.0
"""For each server."""
_RECONNECT_WAIT_S = 0.1
_RECONNECT_TIMEOUT_S = 1.0
"""Of several servers: the next one may be the one that is stopped."""
_DENIED = re.compile(
    r'permissions violation for (?:publish|subscription) to "([^"]+)"', re.IGNORECASE
)
_DENIED_MAX = 256
_PING_S, _PINGS_MAX = 1.5, 2
"""A server that sends nothing for three of these times, while it is asked, is given up: a stopped
or isolated one closes no connection. A cluster elects in four seconds or more."""
_API_TIMEOUT_S = 6.0
"""Above the servers' own: to gather over a cluster takes them up to 5 s, with one of them down."""
_API_AGAIN_S = 0.5
_READS = ("INFO", "STREAM.INFO.", "STREAM.MSG.GET.", "CONSUMER.INFO.", "CONSUMER.NAMES.")
_OPEN_AGAIN_S = 0.3
"""A server that reads its users again closes connections that are being opened, and refuses for a
moment what it accepts before and after: of 800 connections during 40 such reads it closed 60 and
refused 6."""
_ABSENT = (ConnectionRefusedError, TimeoutError, gaierror)
"""Why no server replies; it is not asked again."""
_FLUSH_S = 2
"""A flush never ends if its connection is lost, so the connection is checked this often."""


class Connection:
    """A NATS connection; used on the event loop it was opened on."""

    def __init__(
        self,
        url: str,
        access: ServerAccess = NO_ACCESS,
        *,
        name: str = "rookery",
    ) -> None:
        """``url``: one server, or several of one cluster with commas between them; the connection
        uses one at a time. ``Refused`` if it or a file of ``access`` cannot be used."""
        self.on_reconnect: list[Callable[[], None]] = []
        """Called after every reconnect, when all subscriptions are restored."""
        self.on_disconnect: list[Callable[[], None]] = []
        """Called when the connection is lost, after all open requests have failed."""
        self._targets = ServerTargets.of(url, access)
        access.check()
        if self._targets.password is not None and access.inbox_prefix == INBOX_PREFIX:
            prefix = inbox_of(self._targets.user or "")
            access = msgspec.structs.replace(access, inbox_prefix=prefix)
        self._access, self._name = access, name
        self._is_up = False
        self._server = ""
        """Address of the server in use, or of the last one."""
        self._client = BatchClient(self._on_connection_lost, access)
        self._refusals: list[Exception] = []
        """Why servers refused the first connect; ``_refused`` is set once each has."""
        self._refused = asyncio.Event()
        self.replies = ReplyInbox(self._client.new_inbox())
        """Reply subjects for requests with more than one reply, or that survive a reconnect."""
        self._requests: dict[asyncio.Future[Message], str] = {}
        """Open requests, and their subjects."""
        self._denied: dict[str, None] = {}
        """Subjects that the server has refused on this connection."""
        self.on_denied: list[Callable[[str], None]] = []
        """Called with such a subject."""

    @property
    def connected(self) -> bool:
        return self._is_up and self._client.is_connected

    @property
    def cluster_servers(self) -> int:
        """How many servers the cluster has, as far as they are configured or advertise themselves;
        1 for a server without a cluster."""
        if not self._client.has_cluster:
            return 1
        return max(len(self._targets.addresses), len(self._client.advertised))

    @property
    def client(self) -> Any:
        """The nats-py client, for uses without batches (server information, new inboxes)."""
        return self._client

    async def open(self) -> None:
        """Connect to the first server that accepts; ``Failed`` SERVER_UNREACHABLE or ``Refused``
        UNAUTHORIZED.

        After an error the connection cannot be opened again.
        """
        try:
            await self._open()
        except CodedError as error:
            if isinstance(error.__cause__, _ABSENT):
                raise
            await asyncio.sleep(_OPEN_AGAIN_S)
            self._client = BatchClient(self._on_connection_lost, self._access)
            self._refusals, self._refused = [], asyncio.Event()
            await self._open()

    async def _open(self) -> None:
        connecting = asyncio.create_task(self._connect())
        refused = asyncio.create_task(self._refused.wait())
        patience_s = _OPEN_TIMEOUT_S * len(self._targets.addresses)
        try:
            await asyncio.wait(
                {connecting, refused}, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED
            )
            if not connecting.done():
                raise TimeoutError
            connecting.result()
        except BaseException as error:
            reason = (*self._refusals, self._client.last_error, error)
            await _cancel(connecting)
            await self._client.close()
            if isinstance(error, (OSError, nats.errors.Error)):
                raise self._connect_error(next(filter(None, reason))) from error
            raise
        finally:
            refused.cancel()
        self._is_up = True
        self._note_server()
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
            self._client.write_now()  # nats-py's PING overtakes what it has not written.
            with suppress(nats.errors.Error):
                await self._client.flush(_FLUSH_S)
                return True
            await asyncio.sleep(0)
        return False

    def send(self, messages: Sequence[Outgoing]) -> bool:
        """Write all messages now; ``False`` while disconnected, and they are never sent later.

        ``Refused`` if one of them is invalid, or if the server has refused its subject; then none
        is sent. ``True`` does not promise arrival: only a reply proves it.
        """
        if self._denied:
            for message in messages:
                if message.subject in self._denied:
                    raise not_permitted(message.subject)
        data = encode_frames(messages, self._client.max_payload)
        return self._is_up and self._client.write_now(data)

    async def request(
        self, message: Outgoing, *, timeout_s: float = 2.0, again_s: float = inf
    ) -> Message:
        """Send a request and return its reply; send it again every ``again_s``, as a stream without
        a leader drops it.

        ``Failed`` SERVER_UNREACHABLE on timeout, disconnect or no responder. The ``reply`` of
        ``message`` is replaced.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Message] = loop.create_future()

        def on_reply(reply: Message) -> None:
            if not future.done():
                future.set_result(reply)

        with self.replies.listen(on_reply) as subject:
            sent = message._replace(reply=subject)
            if not self.send([sent]):
                raise _unreachable("there is no connection to the server")
            self._requests[future] = message.subject
            timer = loop.call_later(timeout_s, _expire, future, message.subject, timeout_s)
            try:
                while again_s < timeout_s:
                    done, _ = await asyncio.wait({future}, timeout=again_s)
                    if done:
                        break
                    self.send([sent])
                reply = await future
            finally:
                timer.cancel()
                self._requests.pop(future, None)
        if status_of(reply) == NO_RESPONDERS:
            raise _unreachable(f"no process listens on {hide_tokens(message.subject)}")
        return reply

    async def api(
        self,
        subject: str,
        query: object = None,
        *,
        timeout_s: float = _API_TIMEOUT_S,
        may_repeat: bool = False,
    ) -> dict[str, Any]:
        """Request ``$JS.API.<subject>``; the decoded reply, or ``ApiError``.

        Reads are sent again until they are answered, and so is what ``may_repeat``.
        """
        again_s = _API_AGAIN_S if may_repeat or subject.startswith(_READS) else inf
        body = b"" if query is None else msgspec.json.encode(query)
        request = Outgoing(f"$JS.API.{subject}", body)
        message = await self.request(request, timeout_s=timeout_s, again_s=again_s)
        reply = msgspec.json.decode(message.body, type=dict[str, Any])
        if error := reply.get("error"):
            raise ApiError(error.get("err_code", 0), error.get("description", ""))
        return reply

    async def _connect(self) -> None:
        addresses = list(self._targets.addresses)
        first = entropy(1)[0] % len(addresses)  # Clients spread over the servers.
        options: dict[str, Any] = {
            "token": self._targets.token,
            "user": self._targets.user,
            "password": self._targets.password,
            "inbox_prefix": self._access.inbox_prefix,
            "name": self._name,
            # `open` must report a server that refuses; with several the next one is tried. Later
            # failures are always retried.
            "allow_reconnect": len(addresses) > 1,
            "dont_randomize": True,
            "connect_timeout": _OPEN_TIMEOUT_S,
            "max_reconnect_attempts": -1,
            "reconnect_time_wait": _RECONNECT_WAIT_S,
            "ping_interval": _PING_S,
            "max_outstanding_pings": _PINGS_MAX,
            # Without this nats-py would send failed publishes after the reconnect.
            "pending_size": -1,
            "error_cb": self._report,
            "disconnected_cb": self._disconnected,
            "reconnected_cb": self._reconnected,
            "lame_duck_mode_cb": self._switch_server,
        }
        await self._client.connect([*addresses[first:], *addresses[:first]], **options)
        if not self._client.is_connected:  # The server closed without a reason.
            raise nats.errors.UnexpectedEOF
        self._client.options["allow_reconnect"] = True
        if len(addresses) > 1:
            self._client.options["connect_timeout"] = _RECONNECT_TIMEOUT_S

    def _connect_error(self, reason: BaseException) -> Refused | Failed:
        text, servers = str(reason) or type(reason).__name__, self._targets.all
        if "authorization" in text.lower() or "authentication" in text.lower():
            has_credentials = self._targets.token or self._targets.user
            return Refused(
                "UNAUTHORIZED",
                f"{servers} "
                + (
                    "refuses these credentials"
                    if has_credentials or self._access.has_credentials
                    else "needs a token or credentials"
                ),
                hint="rookery auth url prints the URL of an embedded server, for a role",
            )
        return _unreachable(f"no NATS server replies at {servers}: {text}")

    def _deny(self, subject: str) -> None:
        """Fail what waits for an answer from a subject that the server refuses."""
        self._denied[subject] = None
        if len(self._denied) > _DENIED_MAX:
            del self._denied[next(iter(self._denied))]
        for future, asked in self._requests.items():
            if asked == subject and not future.done():
                future.set_exception(not_permitted(asked))
        for call in tuple(self.on_denied):
            call(subject)
        self.replies.wake_all()

    def _fail_requests(self) -> None:
        for future in self._requests:
            if not future.done():
                future.set_exception(_unreachable("the connection was lost before the reply"))

    def _on_connection_lost(self) -> None:
        self._client.discard_pending()
        if not self._is_up:
            return
        self._is_up = False
        _log.warning("connection lost: server=%s", self._server)
        self._fail_requests()
        self.replies.wake_all()
        _call_all(self.on_disconnect)

    async def _disconnected(self) -> None:
        self._on_connection_lost()

    async def _reconnected(self) -> None:
        self._is_up = True
        self._denied.clear()  # The credential may have other permissions by now.
        self._note_server()
        _log.info("connection restored: server=%s", self._server)
        self.replies.wake_all()
        _call_all(self.on_reconnect)

    async def _switch_server(self) -> None:
        """A server that is about to stop says so: go on with another one, if there is one."""
        if len(self._client.servers) > 1:
            _log.info("server stops soon: server=%s", self._server)
            self.reset()

    def _note_server(self) -> None:
        if (url := self._client.connected_url) is not None:
            self._server = f"{url.scheme}://{url.netloc}"

    async def _report(self, error: Exception) -> None:
        """Log a permission violation as a warning, and failed reconnects for debugging only."""
        denied = _DENIED.search(str(error))
        _log.log(logging.WARNING if denied else logging.DEBUG, "%s", hide_tokens(str(error)))
        if denied:
            self._deny(denied[1])
        is_refusal = isinstance(error, ssl.SSLError) or not isinstance(error, OSError)
        if is_refusal and not self._server:
            self._refusals.append(error)
            if len(self._refusals) >= len(self._targets.addresses) > 1:
                self._refused.set()


def not_permitted(subject: str) -> Refused:
    return Refused(
        "NOT_PERMITTED",
        f"this credential may not use {hide_tokens(subject)}",
        hint="rookery auth list; another role may",
    )


def _expire(future: asyncio.Future[Message], subject: str, timeout_s: float) -> None:
    if not future.done():
        future.set_exception(
            _unreachable(f"no reply on {hide_tokens(subject)} within {timeout_s} s")
        )


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
