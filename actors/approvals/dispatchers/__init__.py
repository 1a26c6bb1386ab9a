"""Dispatchers: the inbox, an outside service, a webhook."""

from rookery.actors.approvals.dispatchers.dispatchers import (
    InboxDispatcher,
    ServiceDispatcher,
    WebhookDispatcher,
    WebhookResponse,
)
from rookery.actors.approvals.dispatchers.port import Dispatcher
from rookery.actors.approvals.dispatchers.webhook_signing import ReplayGuard, WebhookKey

__all__ = [
    "Dispatcher",
    "InboxDispatcher",
    "ReplayGuard",
    "ServiceDispatcher",
    "WebhookDispatcher",
    "WebhookKey",
    "WebhookResponse",
]
