"""The bindings of the configuration, as leases and tools know them, and the providers they name."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

import msgspec

from rookery.actors.leases import Binding, Provider
from rookery.actors.leases.providers import SecretReader, create_providers
from rookery.bus.clock import entropy
from rookery.ops.config import Config
from rookery.ops.keys import NodeSecrets
from rookery.schemas.machines.lease import AuthBindingRef, LeaseKey
from rookery.schemas.protection.bindings import (
    BindingSettings,
    OAuthSettings,
    SecretSource,
    StaticSettings,
)

__all__ = ["bindings_of", "open_providers"]

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
