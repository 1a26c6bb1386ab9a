"""Credentials of calls: where calls get them from, and what a call waits for that has none yet.

Leases implement these ports; tools and models use them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

from rookery.actors.tools import ToolCredential
from rookery.bus.ports import Timer
from rookery.schemas.codec import encode_json
from rookery.schemas.commands import LeaseWait
from rookery.schemas.errors import CodedError, Failed

__all__ = [
    "NO_CREDENTIALS",
    "CredentialSource",
    "CredentialWait",
    "LeaseGate",
    "every_lease_fresh",
    "lease_timer_id",
    "lease_wait_timer",
    "read_credential",
    "read_past",
    "report_rejected",
]

log = logging.getLogger(__name__)


class _CredentialParts(Protocol):
    @property
    def value(self) -> str: ...

    @property
    def scheme(self) -> str: ...


class _CurrentParts(Protocol):
    @property
    def credential(self) -> _CredentialParts: ...

    @property
    def generation(self) -> int: ...


class CredentialSource(Protocol):
    """The leases, as calls use them. A call has waited for its lease before its intent."""

    async def get(self, binding: str) -> _CurrentParts:
        """The present credential of ``binding`` or ``binding:profile``. ``Failed`` if there is
        none any more."""

    async def get_past(self, binding: str, since_ms: int) -> Sequence[_CurrentParts]:
        """All that calls may have had since then. ``Failed`` if one may have been deleted."""

    async def reject(self, binding: str, generation: int) -> None:
        """A service refused the credential of this generation."""


class _NoCredentials:
    """Of a node without leases."""

    async def get(self, binding: str) -> _CurrentParts:
        raise Failed("LEASE_UNAVAILABLE", f"this node has no leases, and so none of {binding}")

    async def get_past(self, binding: str, since_ms: int) -> Sequence[_CurrentParts]:
        del since_ms
        return (await self.get(binding),)

    async def reject(self, binding: str, generation: int) -> None:
        del binding, generation


NO_CREDENTIALS: Final[CredentialSource] = _NoCredentials()


async def read_credential(source: CredentialSource, binding: str) -> ToolCredential:
    """The credential of a call whose intent is recorded."""
    return _tool_credential(await source.get(binding))


async def read_past(
    source: CredentialSource, binding: str, since_ms: int
) -> tuple[ToolCredential, ...]:
    """Those that an attempt may have had which began then."""
    return tuple(map(_tool_credential, await source.get_past(binding, since_ms)))


def _tool_credential(current: _CurrentParts) -> ToolCredential:
    found = current.credential
    return ToolCredential(found.value, found.scheme, current.generation)


async def report_rejected(
    source: CredentialSource, binding: str, credential: ToolCredential
) -> None:
    """Report a credential that the tool's service refused; the outcome of the call does not depend
    on it."""
    try:
        await source.reject(binding, credential.generation)
    except CodedError as error:
        log.warning(
            "rejected credential not reported", extra={"binding": binding, "code": error.code}
        )


# --- waits ----------------------------------------------------------------------------------------


class CredentialWait(NamedTuple):
    """What a call has to wait for before it gets a credential."""

    lease: str
    """The key of the lease."""
    code: str
    """``WAITING_FOR_LEASE`` or ``LEASE_REAUTH_REQUIRED``."""


LeaseGate: TypeAlias = Callable[[str], CredentialWait | None]
"""For the binding of a tool: what its call waits for, as this node knows; ``None`` if nothing."""


def every_lease_fresh(_: str) -> None:
    """Of a node without leases."""


def lease_wait_timer(
    lease: str, session: str, operation_id: str, due_ms: int, *, withdrawn: bool = False
) -> Timer:
    """A durable command to the owner of a lease: an operation waits for its credential, or does not
    any more. A timer reaches the owner of any key, and no client can send what it brings."""
    wait = LeaseWait(session=session, operation_id=operation_id, withdrawn=withdrawn)
    return Timer(
        id=lease_timer_id(operation_id),
        due_ms=due_ms,
        verb="lease_wait",
        key=lease,
        body=encode_json(wait),
    )


def lease_timer_id(operation_id: str) -> str:
    return f"lease.{operation_id}"
