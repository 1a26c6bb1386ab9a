"""Ports of a realm's other storage: blobs, claims, snapshots and secrets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from rookery.schemas.envelope import EntityId
from rookery.schemas.protection.sealed_values import SealedValue

__all__ = [
    "BLOB_BYTES_MAX",
    "IN_FACT_BYTES_MAX",
    "BlobMark",
    "BlobReader",
    "Blobs",
    "Claim",
    "Claims",
    "EntitySnapshot",
    "EntitySnapshots",
    "SecretEntry",
    "Secrets",
    "ValueSeal",
]

IN_FACT_BYTES_MAX: Final = 64 << 10
"""Larger values and bodies are stored as blobs, which facts name by digest."""


BLOB_BYTES_MAX: Final = 64 << 20
"""Limit of a value, because its readers hold several copies in memory."""


class BlobMark(msgspec.Struct, frozen=True):
    """A blob that may have to be deleted."""

    digest: str
    owner: str
    """The session that it was written for."""
    at_ms: int
    """When it was written."""


class BlobReader(Protocol):
    """Bytes named by their SHA3-256, for reading."""

    async def get(self, digest: str) -> bytes:
        """The bytes, checked against the digest; ``BLOB_NOT_FOUND`` or ``BLOB_CORRUPT``."""


class Blobs(BlobReader, Protocol):
    """Bytes named by their SHA3-256."""

    async def put(self, data: bytes, bytes_max: int = BLOB_BYTES_MAX) -> str:
        """Store ``data`` and return its digest. Storing it again costs one read.
        ``PAYLOAD_TOO_LARGE`` above ``bytes_max``."""

    async def exists(self, digest: str) -> bool:
        """Whether the blob is stored completely."""

    async def put_marked(
        self, data: bytes, owner: str, at_ms: int, bytes_max: int = BLOB_BYTES_MAX
    ) -> str:
        """``put`` with a mark, which ``marks`` lists until it is removed: a blob that no fact names
        because its writer died can be found and deleted."""

    async def marks(self) -> list[BlobMark]:
        """The marks of all blobs."""

    async def unmark(self, digest: str) -> None:
        """Remove the blob's mark, because a fact names the blob for ever."""

    async def pin(self, digest: str) -> bool:
        """Protect the blob from ``delete``; false if it does not exist or is being deleted."""

    async def delete(self, digest: str) -> bool:
        """Delete the blob and its mark; false if it is pinned. A deletion that is interrupted
        leaves a mark."""


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


class ValueSeal(Protocol):
    """Seals values with a key of the realm that facts never show."""

    def seal(self, value: bytes, entity: str, field: str) -> SealedValue:
        """Seal JSON for one field of one entity; ``SEALING_KEY_MISSING`` if there is no key."""

    def open(self, sealed: SealedValue, entity: str, field: str) -> bytes:
        """The JSON sealed for this place; ``SEALING_KEY_MISSING``, ``SEALED_VALUE_CORRUPT``."""


class SecretEntry(msgspec.Struct, frozen=True):
    """One generation of a secret, as stored."""

    revision: int
    """Grows with every change of the entry."""
    body: bytes


class Secrets(Protocol):
    """Sealed secrets that the nodes of a realm share: ``SealedSecrets`` seals and opens them.
    Generation 0 is what an older version stored in clear."""

    async def put(self, name: str, generation: int, sealed: bytes, *, after: int = 0) -> bool:
        """Replace the entry of revision ``after`` (0: none); ``False`` if the current one has
        another revision."""

    async def get(self, name: str, generation: int) -> SecretEntry | None:
        """The entry, as the last ``put`` left it."""

    async def delete(self, name: str, generation: int) -> None:
        """Delete the entry; none is no error."""

    async def generations(self, name: str) -> Sequence[int]:
        """The generations of one secret, in order."""

    async def list(self) -> list[tuple[str, int]]:
        """The names and generations of all entries, in order."""
