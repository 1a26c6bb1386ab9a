"""Ports of a realm's other storage: blobs, claims, snapshots and secrets."""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from rookery.schemas.envelope import EntityId

__all__ = [
    "BLOB_BYTES_MAX",
    "IN_FACT_BYTES_MAX",
    "Blobs",
    "Claim",
    "Claims",
    "EntitySnapshot",
    "EntitySnapshots",
    "Secrets",
]

IN_FACT_BYTES_MAX: Final = 64 << 10
"""Larger values and bodies are stored as blobs, which facts name by digest."""


BLOB_BYTES_MAX: Final = 64 << 20
"""Limit of a value, because its readers hold several copies in memory."""


class Blobs(Protocol):
    """Bytes named by their SHA3-256."""

    async def put(self, data: bytes, bytes_max: int = BLOB_BYTES_MAX) -> str:
        """Store ``data`` and return its digest. Storing it again costs one read.
        ``PAYLOAD_TOO_LARGE`` above ``bytes_max``."""

    async def get(self, digest: str) -> bytes:
        """The bytes, checked against the digest; ``BLOB_NOT_FOUND`` or ``BLOB_CORRUPT``."""


class Claim(msgspec.Struct, frozen=True):
    """A name held for a limited time."""

    name: str
    holder: str
    token: int
    """Grows with every change of the claim; a holder with a lower token has lost the claim."""
    value: bytes = b""


class Claims(Protocol):
    """Exclusive names with a time to live (whole seconds, at least one). Acquiring, renewing and
    seizing fail without a reply within a quarter of that time, so that a holder knows in time."""

    async def acquire(self, name: str, holder: str, ttl_s: int, value: bytes = b"") -> Claim | None:
        """The claim, or ``None`` if another holder has it. Acquiring one's own claim renews it."""

    async def renew(self, claim: Claim, ttl_s: int, value: bytes = b"") -> Claim:
        """The claim with a higher token and its full time to live; ``CLAIM_LOST`` if it expired."""

    async def take_from_dead(
        self, claim: Claim, holder: str, ttl_s: int, value: bytes = b""
    ) -> Claim | None:
        """Take over a claim whose holder is known to be dead; ``None`` if it changed meanwhile."""

    async def release(self, claim: Claim) -> None:
        """Free the name; an expired or lost claim is no error."""

    async def list(self, prefix: str = "") -> list[Claim]:
        """All live claims whose name starts with ``prefix``."""


class EntitySnapshot(msgspec.Struct, frozen=True):
    """An entity's state at ``sequence``."""

    sequence: int
    body: bytes


class EntitySnapshots(Protocol):
    """Cached states of entities. The journal can rebuild all of them."""

    async def save(self, entity: EntityId, schema: int, snapshot: EntitySnapshot) -> None:
        """Replace the entity's snapshot; an older sequence never replaces a newer one."""

    async def load(self, entity: EntityId, schema: int) -> EntitySnapshot | None:
        """The snapshot written under exactly this ``schema``, or ``None``."""


class Secrets(Protocol):
    """Secrets that the nodes of a realm share."""

    async def get_or_create(self, name: str, proposed: bytes) -> bytes:
        """The secret ``name``; if there is none, store ``proposed`` and return it."""
