"""Calls to processes outside: tool workers, hooks served elsewhere, and external services."""

from __future__ import annotations

from rookery.bus.workers.external_service import NatsExternalService
from rookery.bus.workers.hook_services import NatsHookEndpoint
from rookery.bus.workers.server import NatsWorkerEndpoint

__all__ = ["NatsExternalService", "NatsHookEndpoint", "NatsWorkerEndpoint"]
