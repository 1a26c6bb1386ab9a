"""The leases of a node, as its configuration declares them: bindings, providers, and the tools and
models that need them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from rookery.actors.leases import Binding, NodeLeases, Provider
from rookery.actors.leases.providers import SecretReader, create_providers
from rookery.actors.metrics import KernelMetrics
from rookery.actors.tools.catalogue import CatalogueTool
from rookery.bus.clock import SystemClock, entropy
from rookery.bus.ports import Bus, BusLoop
from rookery.ops.config import Config
from rookery.ops.keys import NodeSecrets
from rookery.schemas.agents import ConfiguredModel
from rookery.schemas.errors import Refused
from rookery.schemas.machines.lease import AuthBindingRef, LeaseKey
from rookery.schemas.protection.bindings import (
    BindingSettings,
    OAuthSettings,
    SecretSource,
    StaticSettings,
)
from rookery.schemas.surfaces import LOCAL

__all__ = ["LeaseServices"]


class LeaseServices:
    """One per node that executes runs."""

    def __init__(self, node: NodeLeases, bindings: Mapping[str, Binding]) -> None:
        self.node, self._bindings = node, bindings

    @classmethod
    async def open(
        cls,
        bus: Bus,
        loop: BusLoop,
        config: Config,
        node_secrets: NodeSecrets,
        *,
        epoch: str,
        metrics: KernelMetrics,
    ) -> LeaseServices:
        """Begin to follow the leases of the configured bindings."""
        bindings = bindings_of(config)
        node = NodeLeases(
            bus,
            loop,
            epoch=epoch,
            bindings=bindings,
            providers=open_providers(config, node_secrets),
            secrets=node_secrets.sealed,
            entropy=entropy,
            now_ms=SystemClock().now_ms,
            metrics=metrics,
        )
        await node.open()
        return cls(node, bindings)

    def require_bindings(self, catalogue: Iterable[CatalogueTool]) -> None:
        """Refuse a tool whose calls could never get a credential."""
        for tool in catalogue:
            name = self._require(f"the tool {tool.available.name}", tool.binding)
            if name and tool.surface not in self._bindings[name].surfaces:
                raise Refused(
                    "CONFIG_INVALID",
                    f"the tool {tool.available.name} of {tool.surface} needs the binding {name}, "
                    "which is not for this surface",
                    hint=f"[bindings.{name}] surfaces = [..., {tool.surface!r}], if its workers "
                    "may have the credential",
                )

    def require_model_bindings(self, models: Mapping[str, ConfiguredModel]) -> None:
        """Refuse a model whose provider could never get a key."""
        for alias, configured in models.items():
            name = self._require(f"[models.{alias}]", configured.binding)
            if name and LOCAL not in self._bindings[name].surfaces:
                raise Refused(
                    "CONFIG_INVALID",
                    f"[models.{alias}] needs the binding {name}, which is not for this node",
                    hint=f"[bindings.{name}] surfaces = [..., {LOCAL!r}]",
                )

    def _require(self, what: str, binding: str) -> str:
        """The name of a configured binding; empty if none is needed."""
        name = binding.partition(":")[0]
        if name and name not in self._bindings:
            known = ", ".join(sorted(self._bindings)) or "none"
            raise Refused(
                "CONFIG_INVALID",
                f"{what} needs the binding {name}, which is not configured",
                hint=f"add [bindings.{name}]; there are: {known}",
            )
        return name


# --- bindings -------------------------------------------------------------------------------------

# The bindings of the configuration, as leases and tools know them, and the providers they name.


_MARGIN_S = 1.0


def bindings_of(config: Config) -> Mapping[str, Binding]:
    """Every binding by its name. Profiles share the settings of their binding."""
    return {
        name: Binding(
            key=LeaseKey.from_auth_binding(AuthBindingRef(config.realm, name)),
            provider=_provider_name(settings),
            settings=msgspec.to_builtins(settings),
            surfaces=settings.surfaces,
            # For the secret of the client, the exchange, and a provider that ends by itself.
            timeout_s=2 * settings.timeout_s + _MARGIN_S,
        )
        for name, settings in config.bindings.items()
    }


def open_providers(config: Config, node_secrets: NodeSecrets) -> Mapping[str, Provider]:
    """The providers by name; nothing is read yet."""
    sources = tuple(_sources(config.bindings))
    return create_providers(SecretReader(node_secrets.read_stored, os.environ, sources), entropy)


def _sources(bindings: Mapping[str, BindingSettings]) -> Iterator[SecretSource]:
    for settings in bindings.values():
        match settings:
            case StaticSettings(value=text):
                yield SecretSource.parse(text)
            case OAuthSettings(client_secret=text) if text:
                yield SecretSource.parse(text)


def _provider_name(settings: BindingSettings) -> str:
    name: str = msgspec.to_builtins(settings)["provider"]
    return name
