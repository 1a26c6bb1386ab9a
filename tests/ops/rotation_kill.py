"""A rotation in a process of its own, which ends by SIGKILL after its first change.

    python -m tests.ops.rotation_kill URL REALM KEY_FILE

It prints nothing. Run again and again, it is killed after every change that a rotation makes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from rookery.bus.clock import entropy
from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.ports import Secrets
from rookery.bus.ports.storage import SecretEntry
from rookery.bus.sealed_secrets import KeyRing, SealedSecrets
from rookery.ops.keys import ConfiguredKeys, SecretsRotation


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DyingKeys(ConfiguredKeys):
    def replace(self, ring: KeyRing) -> None:
        super().replace(ring)
        die()


class DyingSecrets:
    def __init__(self, stored: Secrets) -> None:
        self._stored = stored

    async def put(self, name: str, generation: int, sealed: bytes, *, after: int = 0) -> bool:
        done = await self._stored.put(name, generation, sealed, after=after)
        die()
        return done

    async def get(self, name: str, generation: int) -> SecretEntry | None:
        return await self._stored.get(name, generation)

    async def delete(self, name: str, generation: int) -> None:
        raise AssertionError("a rotation deletes nothing")

    async def generations(self, name: str) -> Sequence[int]:
        return await self._stored.generations(name)

    async def list(self) -> list[tuple[str, int]]:
        return await self._stored.list()


async def rotate_and_die(url: str, realm: str, file: str) -> None:
    bus = JetStreamBus(url, realm=realm)
    await bus.start()
    keys = DyingKeys("", Path(file), {})
    await SecretsRotation.perform(
        SealedSecrets(DyingSecrets(bus.secrets), realm, keys, entropy), keys
    )


if __name__ == "__main__":
    asyncio.run(rotate_and_die(*sys.argv[1:]))
