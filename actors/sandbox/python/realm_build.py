"""One build of the Python guest for a realm: the first node makes it, the others fetch it.

Builds are not reproducible, and a snapshot fits only the build that it was taken from. So the build
is a blob, and a claim, named after the sources, names the blob. While a node builds, it holds the
claim with an empty value for seconds at a time; then it writes the blob's name into the claim, for
good. Lock and pointer are one name with compare-and-swap, so a realm never has two builds, even if
a node sleeps past the end of its claim.

The component of the fallback is not shared, because it has no images.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from rookery.actors.sandbox.python.build import GuestCache
from rookery.bus.ports import Blobs, Claim, Claims
from rookery.schemas.errors import Failed

__all__ = ["RealmBuild"]

log = logging.getLogger(__name__)

_BUILDING_S: Final = 15
"""The time to live of a builder's claim: another node builds after it."""
_RENEW_S = 5.0
_POLL_S = 0.25
_LOST_CODES: Final = ("BLOB_NOT_FOUND", "BLOB_CORRUPT")
_PERMANENT_S: Final = 10 * 365 * 86_400


class RealmBuild:
    """Finds or makes the realm's build. ``holder`` names this process in the realm."""

    def __init__(self, cache: GuestCache, blobs: Blobs, claims: Claims, holder: str) -> None:
        self._cache, self._blobs, self._claims, self._holder = cache, blobs, claims, holder
        self._name = f"guest.python.{cache.key(stub_wasi=True)}"

    async def agree(self) -> str:
        """Make the cache use the realm's build, and return its digest.

        Call it once on the bus's loop, before the guest is loaded; slow work runs on other
        threads. It waits while another node builds, and fails without a server.
        """
        while True:
            current = await self._current_claim()
            if current is None or not current.value:
                mine = await self._claims.acquire(self._name, self._holder, _BUILDING_S)
            else:
                build = current.value.decode()
                if await self._adopt(build):
                    return build
                mine = await self._claims.take_from_dead(current, self._holder, _BUILDING_S)
            if mine is None:
                await asyncio.sleep(_POLL_S)
            elif (published := await self._publish(mine)) is not None:
                return published

    async def fetch(self, build: str) -> bytes | None:
        """An older or newer build of the realm; ``None`` if its blob is lost."""
        try:
            return await self._blobs.get(build)
        except Failed as failure:
            if failure.code not in _LOST_CODES:
                raise
            log.warning(
                "guest build lost; its sessions cannot be resumed",
                extra={"code": failure.code, "build": build},
            )
            return None

    async def _current_claim(self) -> Claim | None:
        claims = await self._claims.list(self._name)
        return next((claim for claim in claims if claim.name == self._name), None)

    async def _adopt(self, build: str) -> bool:
        """Make the cache use this build; ``False`` if the blob is lost or damaged."""
        if await asyncio.to_thread(self._cache.adopt_stored, build):
            return True
        component = await self.fetch(build)
        if component is None:
            return False
        await asyncio.to_thread(self._cache.adopt, component)
        return True

    async def _publish(self, mine: Claim) -> str | None:
        """Build, store the blob and write its name into the claim; ``None`` if the claim was
        lost."""
        async with self._renewal(mine) as renewed:
            component = await asyncio.to_thread(self._cache.component, stub_wasi=True)
            build = await self._blobs.put(component)
        try:
            await self._claims.renew(renewed[-1], _PERMANENT_S, build.encode())
        except Failed as failure:
            if failure.code != "CLAIM_LOST":
                raise
            log.warning(
                "guest build lost; its sessions cannot be resumed",
                extra={"code": failure.code, "build": build},
            )
            return None
        return build

    @asynccontextmanager
    async def _renewal(self, claim: Claim) -> AsyncIterator[list[Claim]]:
        """Renew a claim during the block; the last item of the list is its newest form."""
        renewed = [claim]
        renewing = asyncio.create_task(self._renew(renewed))
        try:
            yield renewed
        except BaseException:
            with suppress(Failed):  # The claim expires anyway.
                await self._claims.release(renewed[-1])
            raise
        finally:
            renewing.cancel()
            await asyncio.wait([renewing])

    async def _renew(self, renewed: list[Claim]) -> None:
        while True:
            await asyncio.sleep(_RENEW_S)
            try:
                renewed[:] = [await self._claims.renew(renewed[-1], _BUILDING_S)]
            except Failed as failure:
                if failure.code == "CLAIM_LOST":
                    return  # ``_publish`` handles the loss after the build.
