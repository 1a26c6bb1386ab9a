"""Ports of leases: what renews a credential, what keeps it, and what the calls of tools get of it.

A provider knows a protocol (OAuth, a file, a command) and no lease: it never decides when a
credential is renewed, stores nothing and writes no fact. The lease's owner calls it, at most once
at a time for a lease, and cancels it at a time-out. The bus's loop runs all of this: a provider
that would block it uses a thread or a process, and a cancelled call ends at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

import msgspec

from rookery.schemas.machines.lease import LeaseKey

__all__ = [
    "Binding",
    "CurrentCredential",
    "LeaseCredential",
    "LeaseSecrets",
    "Login",
    "LoginNeeded",
    "LoginPrompt",
    "LoginProvider",
    "LoginSecret",
    "Outcome",
    "Provider",
    "Renewed",
    "RetryLater",
]


class _Secret(msgspec.Struct, frozen=True, kw_only=True):
    """Shows nothing of itself in logs and tracebacks."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


class LeaseCredential(_Secret, frozen=True, kw_only=True):
    """A credential; only the vault stores it, sealed."""

    value: str
    """The access token, key or password."""
    scheme: str = "Bearer"
    """The word before the value in an ``Authorization`` header; empty if the value is all of it."""
    expires_at: int | None = None
    """Unix seconds; ``None`` never expires."""
    refresh_token: str = ""
    extra: Mapping[str, str] = {}
    """What else the provider needs to renew it, such as the granted scope."""


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """A set of credentials, as the node's configuration declares it; it contains no secret."""

    key: LeaseKey
    provider: str
    """The name of the provider, as in ``Mapping[str, Provider]``."""
    settings: Mapping[str, Any] = {}
    """Checked by the configuration, in the provider's own form."""
    surfaces: tuple[str, ...] = ("local",)
    """Whose tools may have the credential."""
    timeout_s: float = 30.0
    """The lease's owner cancels a provider after this time."""


# --- what a provider answers --------------------------------------------------------------------


class Renewed(msgspec.Struct, frozen=True):
    """A credential newer than the one before."""

    credential: LeaseCredential


class RetryLater(msgspec.Struct, frozen=True):
    """No credential yet, and a repetition can do no harm: an outage, a limit, a pending login."""

    after_s: float
    """As the server asks (``Retry-After``), else 0: the lease chooses."""
    reason: str
    """In words without a secret; facts and people get it."""


class LoginNeeded(msgspec.Struct, frozen=True):
    """Only a new login, or a change of the configuration, leads to a credential."""

    reason: str
    """In words without a secret; facts and people get it."""
    may_be_lost: bool = False
    """Whether the refresh token may be used up, and the one that replaces it lost."""


Outcome: TypeAlias = Renewed | RetryLater | LoginNeeded


class Provider(Protocol):
    """Renews credentials. It raises nothing but ``CancelledError``."""

    def is_repeatable(self, binding: Binding, credential: LeaseCredential | None) -> bool:
        """Whether a refresh may be repeated although the answer to the first may be lost. False
        for a refresh token that the server may replace at its use."""

    async def refresh(
        self, binding: Binding, credential: LeaseCredential | None, *, now: float
    ) -> Outcome:
        """A newer credential. ``credential``: the one of the lease; ``None`` before the first.
        ``now``: Unix seconds. If an answer may be lost and ``is_repeatable`` is false, the outcome
        is ``LoginNeeded``."""


# --- logins -------------------------------------------------------------------------------------


class LoginPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """What a person needs to log in."""

    url: str
    user_code: str = ""
    """Of a login by device code."""
    expires_at: int
    """Unix seconds."""
    interval_s: float = 0.0
    """How long to wait between two polls of a device login."""


class LoginSecret(_Secret, frozen=True, kw_only=True):
    """What completes a login; the vault seals it under the id of the flow until it ends."""

    redirect_uri: str = ""
    state: str = ""
    verifier: str = ""
    """Of PKCE."""
    device_code: str = ""
    expires_at: int


class Login(msgspec.Struct, frozen=True):
    """A login that has begun."""

    prompt: LoginPrompt
    secret: LoginSecret


class LoginProvider(Provider, Protocol):
    """A provider that people can log in to."""

    async def begin_login(
        self, binding: Binding, redirect_uri: str, *, now: float
    ) -> Login | RetryLater | LoginNeeded:
        """By a browser that returns to ``redirect_uri``; by a device code if that is empty."""

    async def complete_login(
        self, binding: Binding, secret: LoginSecret, code: str, *, now: float
    ) -> Outcome:
        """Exchange the browser's ``code``, whose state was compared; a device login, whose code
        is empty, polls once: ``RetryLater`` while it is pending."""


# --- secrets, and the calls of tools ----------------------------------------------------------


class LeaseSecrets(Protocol):
    """Sealed values by name and generation, as ``SealedSecrets`` keeps them. The value of a
    generation never changes. ``Failed`` if the server is unreachable, ``Refused`` if a key is
    missing."""

    async def get(self, name: str, generation: int = 1) -> bytes | None:
        """The value; ``None`` if there is none."""

    async def put(self, name: str, generation: int, value: bytes) -> bool:
        """Store a new generation durably; ``False`` if it exists."""

    async def delete(self, name: str, generation: int) -> None:
        """Delete a generation if it exists."""


class CurrentCredential(msgspec.Struct, frozen=True):
    """A credential of a lease, with the generation that the lease's fact names."""

    credential: LeaseCredential
    generation: int
