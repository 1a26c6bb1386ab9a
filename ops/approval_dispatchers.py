"""A node's approval dispatchers, and the HTTP of the dispatcher ``webhook``."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from contextlib import ExitStack
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Final, NamedTuple

from rookery.actors.approvals.dispatchers import (
    Dispatcher,
    InboxDispatcher,
    ServiceDispatcher,
    WebhookDispatcher,
)
from rookery.actors.daemon_threads import DaemonThreadPool
from rookery.actors.keys.webhooks import ReplayGuard, WebhookKey, WebhookResponse
from rookery.actors.tools import ToolError
from rookery.actors.tools.http import HttpExchange, HttpRequest, HttpTransport, parse_url
from rookery.bus.client import Client
from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.ports import BusLoop
from rookery.bus.workers import NatsExternalService
from rookery.ops.config import ApprovalsConfig
from rookery.ops.http_server import HttpServer
from rookery.schemas.approvals.records import DecideApproval
from rookery.schemas.codec import JSON, decode_command, encode_json
from rookery.schemas.digest import digest_bytes
from rookery.schemas.errors import CodedError, Failed, Refused
from rookery.schemas.run import ErrorObject

__all__ = [
    "PATH",
    "ApprovalDispatchers",
    "HttpPost",
    "WebhookCallback",
    "WebhookCallbackServer",
    "open_callback",
]

# --- webhook --------------------------------------------------------------------------------------

# The HTTP of the dispatcher ``webhook``: its posts, and the endpoint for the answers.
#
# Posts go to one configured URL, bounded in time and size, without following redirects. A post
# blocks one of the caller's few threads.
#
# Each answer becomes a ``decide`` command. The endpoint accepts requests that are signed with the
# webhook's secret, recent, and not replayed. The approval decider judges the answer itself. The
# endpoint has no TLS; a public one needs a proxy.


TRY_S: Final = 10.0
RESPONSE_BYTES_MAX: Final = 64 << 10


class HttpPost:
    """A ``PostWebhook``."""

    def __init__(
        self,
        url: str,
        threads: Executor,
        *,
        try_s: float = TRY_S,
        option: str = "approvals.webhook_url",
    ) -> None:
        """``option``: where the URL comes from."""
        try:
            self._target = parse_url(url)
        except ToolError as error:
            raise Refused("CONFIG_INVALID", f"{option}: {error}") from None
        self._threads, self._try_s, self._transport = threads, try_s, HttpTransport()

    async def __call__(self, headers: Mapping[str, str], body: bytes) -> WebhookResponse | None:
        exchange = HttpExchange(
            self._transport,
            HttpRequest(
                "POST", self._target, {**headers, "Content-Type": "application/json"}, body
            ),
            permits=lambda _: True,
            body_bytes_max=RESPONSE_BYTES_MAX,
            connect_timeout_s=self._try_s,
        )
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._try_s):
                response = await loop.run_in_executor(self._threads, exchange.run)
        except (TimeoutError, ToolError):
            return None
        finally:
            exchange.abort()
        return WebhookResponse(response.status, response.headers, response.body)


PATH: Final = "/approvals/answers"
BODY_BYTES_MAX: Final = 64 << 10
_FORBIDDEN: Final = frozenset(
    {"APPROVER_UNKNOWN", "SELF_APPROVAL", "SIGNATURE_INVALID", "SIGNATURE_REQUIRED"}
)

Decide = Callable[[DecideApproval, str], object]
"""Send an answer as a command with this message id; the reply, or ``CodedError``."""


class _CallbackReply(NamedTuple):
    status: HTTPStatus
    body: bytes


class WebhookCallback:
    """Handles one request, independent of HTTP."""

    def __init__(self, key: WebhookKey, now_ms: Callable[[], int], decide: Decide) -> None:
        self._key, self._now_ms, self._decide = key, now_ms, decide
        self._seen, self._lock = ReplayGuard(), threading.Lock()

    def handle(self, headers: Mapping[str, str], body: bytes) -> _CallbackReply:
        """Verify and send the answer; names of ``headers`` are in lower case."""
        try:
            message_id = self._key.verify(headers, body, self._now_ms())
            answer = decode_command(
                body, DecideApproval, content_type=headers.get("content-type", "")
            )
            with self._lock:
                if not self._seen.add(message_id, self._now_ms()):
                    raise Refused(
                        "IDEMPOTENCY_KEY_REUSED", "an answer with this id was received before"
                    )
            try:
                return _CallbackReply(HTTPStatus.OK, encode_json(self._decide(answer, message_id)))
            except Failed:
                with self._lock:
                    self._seen.release(message_id)
                raise
        except CodedError as error:
            problem = ErrorObject(code=error.code, message=error.message, hint=error.hint or None)
            return _CallbackReply(_status_of(error), encode_json({"error": problem}))


class WebhookCallbackServer(HttpServer):
    """Serves a ``WebhookCallback``."""

    def __init__(self, host: str, port: int, callback: WebhookCallback) -> None:
        hint = "choose another approvals.callback_port; 0 takes a free one"
        super().__init__(host, port, _handler(callback), what="callback", hint=hint)

    @property
    def url(self) -> str:
        return super().url + PATH


def _handler(callback: WebhookCallback) -> type[BaseHTTPRequestHandler]:
    class CallbackHandler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = self.headers.get("Content-Length", "")
            if self.path != PATH:
                self.send_error(HTTPStatus.NOT_FOUND)
            elif not (length.isascii() and length.isdecimal()):
                self.send_error(HTTPStatus.LENGTH_REQUIRED)
            elif len(length) > 9 or int(length) > BODY_BYTES_MAX:
                self.send_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            else:
                headers = {name.lower(): value for name, value in self.headers.items()}
                self._send(callback.handle(headers, self.rfile.read(int(length))))

        def _send(self, reply: _CallbackReply) -> None:
            self.send_response(reply.status)
            self.send_header("Content-Type", JSON)
            self.send_header("Content-Length", str(len(reply.body)))
            self.end_headers()
            self.wfile.write(reply.body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Log nothing: valid answers are facts."""

    return CallbackHandler


def _status_of(error: CodedError) -> HTTPStatus:
    if isinstance(error, Failed):
        return HTTPStatus.SERVICE_UNAVAILABLE
    if error.code == "UNAUTHORIZED":
        return HTTPStatus.UNAUTHORIZED
    if error.code.startswith("INVALID_") or error.code == "UNKNOWN_FIELD":
        return HTTPStatus.BAD_REQUEST
    if error.code.endswith("_NOT_FOUND"):
        return HTTPStatus.NOT_FOUND
    if error.code in _FORBIDDEN:
        return HTTPStatus.FORBIDDEN
    return HTTPStatus.CONFLICT


# --- approval dispatchers -------------------------------------------------------------------------

# A node's approval dispatchers, and the endpoint for a webhook's answers.
#
# They open before the kernel starts and close after it has stopped.


CONCURRENT_POSTS_MAX: Final = 32
DECIDE_TIMEOUT_S: Final = 10.0


class ApprovalDispatchers:
    """The dispatchers of one node."""

    def __init__(
        self, config: ApprovalsConfig, bus: JetStreamBus, now_ms: Callable[[], int]
    ) -> None:
        """``Refused`` if the configuration is invalid."""
        self._config, self._now_ms = config, now_ms
        self._threads = DaemonThreadPool(CONCURRENT_POSTS_MAX)
        named: set[str] = {*config.dispatchers}
        if config.escalate_to is not None:
            named.add(config.escalate_to)
        self.dispatchers: Mapping[str, Dispatcher] = {
            dispatcher.name: dispatcher for dispatcher in self._create(bus, named)
        }

    def _create(self, bus: JetStreamBus, named: set[str]) -> Iterable[Dispatcher]:
        if "inbox" in named:
            yield InboxDispatcher()
        if "service" in named:
            service = NatsExternalService(
                bus.connection, bus.subjects, self._config.service_subject
            )
            yield ServiceDispatcher(service, bus.realm)
        if "webhook" in named:
            post = HttpPost(self._config.webhook_url, self._threads)
            key = WebhookKey(self._config.webhook_secret)
            yield WebhookDispatcher(post, key, bus.realm, now_ms=self._now_ms)

    def open(self, opened: ExitStack) -> None:
        """``opened`` gets what is to be closed; closing finishes the requests under way."""
        opened.callback(self._threads.shutdown)


def open_callback(
    config: ApprovalsConfig,
    loop: BusLoop,
    client: Client,
    opened: ExitStack,
    now_ms: Callable[[], int],
) -> str:
    """Open the endpoint for a webhook's answers, if one is configured; its URL. ``client`` sends
    the answers; it is not open yet, and is opened and closed here."""
    if config.callback_port is None:
        return ""
    key = WebhookKey(config.webhook_secret)
    loop.run(client.open())
    opened.callback(lambda: loop.run(client.close()))

    def decide(answer: DecideApproval, message_id: str) -> object:
        session = answer.approval_id.partition(".")[0]
        command_id = f"webhook.{digest_bytes(message_id.encode())}"
        return loop.run(
            client.ask("decide", session, answer, message_id=command_id, timeout_s=DECIDE_TIMEOUT_S)
        )

    callback = WebhookCallback(key, now_ms, decide)
    host, port = config.callback_host, config.callback_port
    return opened.enter_context(WebhookCallbackServer(host, port, callback)).url
