"""A node's approval dispatchers, and the endpoint for a webhook's answers.

They open before the kernel starts and close after it has stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Final

from rookery.actors.approvals.dispatchers import (
    Dispatcher,
    InboxDispatcher,
    ServiceDispatcher,
    WebhookDispatcher,
    WebhookKey,
)
from rookery.actors.tools import DaemonThreadPool
from rookery.bus.client import Client, NatsExternalService
from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.ports import BusLoop
from rookery.ops.config import ApprovalsConfig
from rookery.ops.webhook import HttpPost, WebhookCallback, WebhookCallbackServer
from rookery.schemas.approvals.decision import DecideApproval
from rookery.schemas.digest import digest_bytes

__all__ = ["ApprovalDispatchers", "open_callback"]

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
