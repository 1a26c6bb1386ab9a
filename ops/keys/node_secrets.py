"""The secrets that a node itself uses: the keys of session images and of sensitive values."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from rookery.bus.clock import entropy
from rookery.bus.credentials import KEY_BYTES, KeyRing, SealedSecrets
from rookery.bus.ports import Secrets
from rookery.ops.keys.sealing_keys import ConfiguredKeys, finish_rotation, open_secrets
from rookery.schemas.errors import CodedError, Failed, Refused
from rookery.schemas.protection.bindings import SecretSource

__all__ = ["OPERATORS", "SNAPSHOTS", "NodeSecrets", "open_node_secrets", "stored_name"]

log = logging.getLogger(__name__)

SNAPSHOTS: Final = "snapshots"
"""It seals the session images of the realm."""
VALUES: Final = "values"
"""A ring of keys, which seal sensitive values in facts."""
CHECK_S: Final = 2.0
OPERATORS: Final = "secret/"
"""Before the names of secrets that people store; nodes use others."""


class NodeSecrets:
    """Read once at the start of a node; lives on the bus's loop."""

    def __init__(
        self, keys: ConfiguredKeys, sealed: SealedSecrets, snapshots: bytes, values: KeyRing
    ) -> None:
        self._keys, self._sealed = keys, sealed
        self.snapshots, self.values = snapshots, values
        self.unavailable_reason = ""
        """Why this node can open no secret now."""

    @property
    def sealed(self) -> SealedSecrets:
        """All secrets of the realm."""
        return self._sealed

    async def read_stored(self, name: str) -> bytes | None:
        """The secret that ``rookery secrets set NAME`` stored last."""
        found = await self._sealed.newest(stored_name(name))
        return None if found is None else found[1]

    async def watch(self) -> None:
        """Check that the key at hand still opens secrets, until cancelled: another node may have
        rotated it. A rotation whose process was killed is finished here."""
        while True:
            await asyncio.sleep(CHECK_S)
            await self.check()
            if not self.unavailable_reason:
                await self.finish_rotation()

    async def finish_rotation(self) -> None:
        """Finish a rotation of the key file whose process was killed, if there is one."""
        try:
            if done := await finish_rotation(self._sealed, self._keys):
                log.info("interrupted rotation finished", extra={"resealed": done.resealed})
        except CodedError as error:
            log.warning("interrupted rotation not finished", extra={"code": error.code})

    async def check(self) -> None:
        reason = ""
        try:
            await self._keys.refresh()
            await self._sealed.get(SNAPSHOTS)
        except Refused as refusal:
            reason = f"{refusal.code}: {refusal.message}"
        except Failed as failure:
            if failure.code == "SERVER_UNREACHABLE":
                return  # Another probe reports it.
            reason = f"{failure.code}: {failure.message}"
        if reason and reason != self.unavailable_reason:
            log.error("the realm's secrets cannot be opened", extra={"why": reason})
        self.unavailable_reason = reason


def stored_name(name: str) -> str:
    """How the realm's secrets call one that people store; ``Refused`` for an invalid name."""
    try:
        SecretSource.parse(f"secret:{name}")
    except ValueError as error:
        raise Refused("INVALID_ARGUMENT", f"{name[:80]!r}: {error}") from None
    return f"{OPERATORS}{name}"


async def open_node_secrets(secrets: Secrets, realm: str, keys: ConfiguredKeys) -> NodeSecrets:
    """Open the secrets, or make them in a new realm. ``SEALING_KEY_MISSING`` if another key seals
    them: of nodes that begin a realm together with different keys, one is refused."""
    began_with = keys.ring if keys.exists else None
    sealed = await open_secrets(secrets, realm, keys)
    snapshots = await sealed.get_or_create(SNAPSHOTS, entropy(KEY_BYTES))
    fresh = entropy(KEY_BYTES)
    # An older version sealed values with the keys of the file.
    proposed = KeyRing([fresh]) if began_with is None else began_with.with_key(fresh)
    values = await sealed.get_or_create(VALUES, proposed.text.encode())
    return NodeSecrets(keys, sealed, snapshots, KeyRing.parse(values.decode()))
