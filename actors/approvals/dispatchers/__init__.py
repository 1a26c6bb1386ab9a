"""Dispatchers: the inbox, an outside service, a webhook."""

from rookery.actors.approvals.dispatchers.dispatchers import (
    InboxDispatcher,
    PostWebhook,
    ReplayGuard,
    ServiceDispatcher,
    WebhookDispatcher,
    WebhookKey,
    WebhookResponse,
)
from rookery.actors.approvals.dispatchers.protocol import Dispatcher

__all__ = [
    "Dispatcher",
    "InboxDispatcher",
    "PostWebhook",
    "ReplayGuard",
    "ServiceDispatcher",
    "WebhookDispatcher",
    "WebhookKey",
    "WebhookResponse",
]
