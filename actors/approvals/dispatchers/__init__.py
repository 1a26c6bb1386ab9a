"""Dispatchers: the inbox, an outside service, a webhook."""

from rookery.actors.approvals.dispatchers.dispatchers import (
    InboxDispatcher,
    ServiceDispatcher,
    WebhookDispatcher,
)
from rookery.actors.approvals.dispatchers.protocol import Dispatcher

__all__ = [
    "Dispatcher",
    "InboxDispatcher",
    "ServiceDispatcher",
    "WebhookDispatcher",
]
