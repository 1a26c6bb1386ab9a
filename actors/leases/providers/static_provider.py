"""A credential that something else renews: an environment variable, a file, a command, a secret of
the realm. A refresh reads it again."""

from __future__ import annotations

import msgspec

from rookery.actors.leases.provider import (
    Binding,
    LeaseCredential,
    LoginNeeded,
    Outcome,
    Renewed,
    RetryLater,
)
from rookery.actors.leases.providers.secret_reader import SecretReader, SecretUnavailable
from rookery.schemas.protection.bindings import StaticSettings

__all__ = ["StaticProvider", "unavailable_outcome"]


class StaticProvider:
    """Provider ``static``."""

    def __init__(self, secrets: SecretReader) -> None:
        self._secrets = secrets

    def is_repeatable(self, binding: Binding, credential: LeaseCredential | None) -> bool:
        """Reading changes nothing."""
        del binding, credential
        return True

    async def refresh(
        self, binding: Binding, credential: LeaseCredential | None, *, now: float
    ) -> Outcome:
        del credential
        settings = msgspec.convert(binding.settings, StaticSettings)
        try:
            value = await self._secrets.read(settings.value, settings.timeout_s)
        except SecretUnavailable as unavailable:
            return unavailable_outcome(unavailable)
        expires_at = None if settings.lasts_s is None else int(now) + settings.lasts_s
        return Renewed(LeaseCredential(value=value, scheme=settings.scheme, expires_at=expires_at))


def unavailable_outcome(unavailable: SecretUnavailable) -> RetryLater | LoginNeeded:
    """The outcome of a refresh that needs a secret which its source does not have."""
    reason = str(unavailable)
    return RetryLater(0.0, reason) if unavailable.for_now else LoginNeeded(reason)
