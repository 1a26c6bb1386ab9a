"""Ports of what a realm stores beside its journal: blobs, claims, snapshots and secrets."""

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
"""Larger values and bodies stand in the blob store, and facts name them by digest."""


BLOB_BYTES_MAX: Final = 64 << 20
"""Of a value, for whoever reads it holds it several times over."""


class Blobs(Protocol):
    """Bytes named by their SHA3-256."""

    async def put(self, data: bytes, bytes_max: int = BLOB_BYTES_MAX) -> str:
        """Store ``data``; its digest. Storing it twice costs one look. ``PAYLOAD_TOO_LARGE`` for
        what is larger than values are, unless it may be."""

    async def get(self, digest: str) -> bytes:
        """The bytes, checked against the digest; ``BLOB_NOT_FOUND`` or ``BLOB_CORRUPT``."""


class Claim(msgspec.Struct, frozen=True):
    """A name held for a while."""

    name: str
    holder: str
    token: int
    """Grows with every change of the claim: a holder with a lower one has lost it."""
    value: bytes = b""


class Claims(Protocol):
    """Exclusive names with a time to live (whole seconds, at least one). Acquiring, renewing and
    seizing fail if no answer comes within a quarter of that time: a holder has to know in time."""

    async def acquire(self, name: str, holder: str, ttl_s: int, value: bytes = b"") -> Claim | None:
        """The claim, or ``None`` if somebody else holds it. Taking one's own again renews it."""

    async def renew(self, claim: Claim, ttl_s: int, value: bytes = b"") -> Claim:
        """The claim with a higher token and a fresh time to live; ``CLAIM_LOST`` if it is gone."""

    async def take_from_dead(
        self, claim: Claim, holder: str, ttl_s: int, value: bytes = b""
    ) -> Claim | None:
        """Take over a claim whose holder is known to be dead; ``None`` if it changed meanwhile."""

    async def release(self, claim: Claim) -> None:
        """Free the name if the claim still stands; no error if it does not."""

    async def list(self, prefix: str = "") -> list[Claim]:
        """All claims alive whose name starts with ``prefix``."""


class EntitySnapshot(msgspec.Struct, frozen=True):
    """An entity's state as of ``sequence``."""

    sequence: int
    body: bytes


class EntitySnapshots(Protocol):
    """States of entities: a shortcut, never the truth. Losing them all loses nothing."""

    async def save(self, entity: EntityId, schema: int, snapshot: EntitySnapshot) -> None:
        """Replace the entity's snapshot; an older sequence never replaces a newer one."""

    async def load(self, entity: EntityId, schema: int) -> EntitySnapshot | None:
        """The snapshot, or ``None`` if there is none written under exactly this ``schema``."""


class Secrets(Protocol):
    """What the nodes of a realm share and keep to themselves."""

    async def get_or_create(self, name: str, proposed: bytes) -> bytes:
        """What stands under ``name``: ``proposed``, from now on, if nothing did."""
