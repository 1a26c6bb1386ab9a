"""Hooks outside of nodes: what opens their executors, and what ``rookery hooks serve`` runs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from rookery.actors.daemon_threads import DaemonThreadPool
from rookery.actors.hooks import LocalHook
from rookery.actors.hooks.executors import ExternalExecutor, ServiceExecutor, answer_invocation
from rookery.actors.hooks.realm import HookChanges, HookTrials, LiveHooks
from rookery.actors.kernel.executors import AskActor, QueryHandler
from rookery.actors.sandbox import Sandbox
from rookery.actors.tools.catalogue import ToolCatalogue
from rookery.bus.clock import SystemClock
from rookery.bus.event_loop import LoopThread
from rookery.bus.nats import Connection
from rookery.bus.ports import Bus
from rookery.bus.roles import Role
from rookery.bus.subjects import Subjects
from rookery.bus.workers import NatsHookEndpoint
from rookery.ops.approval_dispatchers import HttpPost
from rookery.ops.config import Config
from rookery.ops.hooks.program import ProgramExecutor
from rookery.ops.hooks.webhook import ReadSecret, WebhookExecutor
from rookery.ops.server import ConfiguredServer
from rookery.schemas.errors import CodedError, Refused
from rookery.schemas.hooks import (
    HookExecutorKind,
    HookRegistration,
    HttpHook,
    NatsHook,
    ProgramHook,
)

__all__ = ["HookOpeners", "HookProcess", "hook_openers", "hook_queries"]

HookOpeners = Mapping[type[HookExecutorKind], Callable[[HookRegistration], ExternalExecutor]]

log = logging.getLogger(__name__)

THREADS_MAX: Final = 16
SERVER_POLL_S: Final = 0.5
HTTP_S_MIN: Final = 2.0
"""Trials may take longer than invocations, which are cut at their limit."""


def hook_openers(bus: Bus, sandbox: Sandbox, read_secret: ReadSecret) -> HookOpeners:
    """By kind, what makes the executor of a hook that is invoked outside of the node.
    ``read_secret``: a secret that an operator has stored, by its name."""
    threads = DaemonThreadPool(THREADS_MAX)

    def service(registration: HookRegistration) -> ExternalExecutor:
        now_ms = SystemClock().now_ms
        return ServiceExecutor(bus.hook_services, registration, realm=bus.realm, now_ms=now_ms)

    def webhook(registration: HookRegistration) -> ExternalExecutor:
        limit_s = max(HTTP_S_MIN, registration.spec.timeout.timeout_ms / 1_000)
        return WebhookExecutor(
            lambda url: HttpPost(url, threads, try_s=limit_s, option="url of the hook"),
            read_secret,
            registration,
            realm=bus.realm,
            now_ms=SystemClock().now_ms,
        )

    def program(registration: HookRegistration) -> ExternalExecutor:
        return ProgramExecutor(sandbox, registration, now_ms=SystemClock().now_ms)

    return {NatsHook: service, HttpHook: webhook, ProgramHook: program}


def hook_queries(
    ask: AskActor, live: LiveHooks, catalogue: ToolCatalogue
) -> Mapping[str, QueryHandler]:
    """The verbs about hooks that a node answers."""
    trials = HookTrials(live, catalogue, SystemClock().now_ms)
    return {**HookChanges(ask, live).queries, "hook_trial": trials.reply}


class HookProcess:
    """Serves hooks from ``start`` to ``stop``, through every outage; each with a credential of its
    own."""

    def __init__(self, config: Config, hooks: Sequence[object]) -> None:
        served = [one for one in hooks if isinstance(one, LocalHook)]
        if not served:
            raise Refused(
                "HOOK_NOT_FOUND",
                "the registry has no function that is a hook",
                hint="@hook makes one of a function; a rule needs no process",
            )
        self._config, self._loop = config, LoopThread()
        self._hooks = {one.registration.spec.hook_id.as_str(): one for one in served}
        self._connections: list[Connection] = []
        self._endpoints: list[NatsHookEndpoint] = []
        threads = DaemonThreadPool(THREADS_MAX)
        for one in served:
            one.threads = threads

    @property
    def names(self) -> Sequence[str]:
        return sorted(self._hooks)

    def start(self, stopping: threading.Event) -> bool:
        """Return once the hooks are served; ``False`` if the process is stopped while it waits for
        a server."""
        for name, hook in self._hooks.items():
            if not self._serve(name, hook, stopping):
                self.stop()
                return False
        return True

    def stop(self) -> None:
        """Answer the invocations under way, and disconnect."""
        for endpoint in self._endpoints:
            self._loop.run(endpoint.close())
        for connection in self._connections:
            self._loop.run(connection.close())
        self._loop.close()

    def _serve(self, name: str, hook: LocalHook, stopping: threading.Event) -> bool:
        while (connection := self._connect(name)) is None:
            if stopping.wait(SERVER_POLL_S):
                return False
        self._connections.append(connection)
        endpoint = NatsHookEndpoint(connection, Subjects(self._config.realm), name)
        self._loop.run(endpoint.open(partial(answer_invocation, hook=hook.invoke)))
        self._endpoints.append(endpoint)
        return True

    def _connect(self, name: str) -> Connection | None:
        """A connection; ``None`` while there is no server."""
        try:
            server = ConfiguredServer(self._config).require(Role.HOOK, name)
            connection = Connection(server.url, server.access, name="rookery-hook")
            self._loop.run(connection.open())
        except CodedError as error:
            if error.code != "SERVER_UNREACHABLE":
                raise
            log.info("waiting for a server", extra={"reason": error.message})
            return None
        return connection
