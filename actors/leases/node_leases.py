"""The leases of one node: what it knows of them, what its calls get of them, and what it does for
those that it owns."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rookery.actors.kernel import Effect
from rookery.actors.kernel.executors import AskActor, EffectHandler, Failpoints, QueryHandler
from rookery.actors.leases.credentials import LeaseCredentials, LeaseStates
from rookery.actors.leases.decider import LeasesDecider
from rookery.actors.leases.executor import LeaseExecutor
from rookery.actors.leases.logins import LeaseLogins
from rookery.actors.leases.provider import Binding, LeaseSecrets, Provider
from rookery.actors.metrics import KernelMetrics
from rookery.bus.ports import Bus, BusLoop

__all__ = ["NodeLeases"]


class NodeLeases:
    """One per node that executes runs. It has what ``executor`` and ``logins`` need in common."""

    def __init__(
        self,
        bus: Bus,
        loop: BusLoop,
        *,
        epoch: str,
        bindings: Mapping[str, Binding],
        providers: Mapping[str, Provider],
        secrets: LeaseSecrets,
        entropy: Callable[[int], bytes],
        now_ms: Callable[[], int],
        metrics: KernelMetrics,
    ) -> None:
        self._bus, self._bindings, self._providers = bus, bindings, providers
        self._secrets, self._entropy = secrets, entropy
        self._now_ms, self._metrics = now_ms, metrics
        self.states = LeaseStates(bus, loop, now_ms)
        self.credentials = LeaseCredentials(bus.timers, self.states, secrets, now_ms)
        self.decider = LeasesDecider(epoch)

    async def open(self) -> None:
        """Begin to follow the leases of the configured bindings."""
        await self.states.open(self._bindings)

    def queries(self, ask: AskActor) -> Mapping[str, QueryHandler]:
        """The queries about leases, and logins."""
        logins = LeaseLogins(
            ask=ask,
            journal=self._bus.journal,
            secrets=self._secrets,
            bindings=self._bindings,
            providers=self._providers,
            entropy=self._entropy,
            now_ms=self._now_ms,
            metrics=self._metrics,
        )
        return logins.queries

    def handlers(
        self, ask: AskActor, failpoints: Failpoints
    ) -> Mapping[type[Effect], EffectHandler]:
        """The handler of each effect of the leases that this node owns."""
        executor = LeaseExecutor(
            ask=ask,
            timers=self._bus.timers,
            secrets=self._secrets,
            bindings=self._bindings,
            providers=self._providers,
            now_ms=self._now_ms,
            metrics=self._metrics,
            failpoints=failpoints,
        )
        return executor.handlers
