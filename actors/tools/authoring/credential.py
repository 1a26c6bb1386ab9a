"""The credential that a function gets for one call, and where calls get it from.

No program sees it, and no fact, log or error has it: what the function returns or raises is
scrubbed of it. A function that prints it, or sends it elsewhere, gives it away.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, Protocol

from rookery.actors.protection.scrubber import Scrubber, scrubber_of
from rookery.schemas.errors import CodedError, Failed

__all__ = [
    "NO_CREDENTIALS",
    "CredentialSource",
    "ToolCredential",
    "read_credential",
    "read_past",
    "report_rejected",
]

log = logging.getLogger(__name__)


class ToolCredential:
    """A fresh credential of the tool's binding."""

    def __init__(self, value: str, scheme: str = "Bearer", generation: int = 0) -> None:
        self.value, self.scheme, self.generation = value, scheme, generation
        self.is_rejected = False
        """Whether the function has called ``reject``."""

    def header(self, name: str = "Authorization") -> dict[str, str]:
        """For a request: in ``Authorization`` it is preceded by its scheme."""
        is_plain = name.lower() != "authorization" or not self.scheme
        return {name: self.value if is_plain else f"{self.scheme} {self.value}"}

    def query(self, name: str) -> dict[str, str]:
        """For a URL, as a parameter."""
        return {name: self.value}

    def environment(self, name: str) -> dict[str, str]:
        """For a child process, beside the variables it needs; children inherit nothing of it."""
        return {name: self.value}

    def reject(self) -> None:
        """Report that the service refused it, as with status 401: the call fails, whatever the
        function returns, and the credential is refreshed although its time is not over."""
        self.is_rejected = True

    @property
    def scrubber(self) -> Scrubber:
        return scrubber_of(self.value)

    def __repr__(self) -> str:
        return "<ToolCredential>"

    __str__ = __repr__


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
