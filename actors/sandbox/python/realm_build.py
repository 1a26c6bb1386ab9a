"""One build of the Python guest for a realm: the first node makes it, the others fetch it.

Builds are not reproducible, and a snapshot fits the build it was taken from and no other. So the
build is a blob, and one claim, named after the sources, says which: while a node builds it holds
the claim for seconds at a time, empty; then it turns the claim into one that names the blob, for
good. Lock and pointer are one name that is compared and swapped, so a realm never has two builds,
whoever sleeps through the end of a claim. Loading what was agreed on is ``python_guest``'s.

The component that runs where linking does not work is not shared: it has no images to share.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from rookery.actors.sandbox.python.build import GuestCache, source_key
from rookery.bus.ports import Blobs, Claim, Claims
from rookery.schemas.errors import Failed

__all__ = ["RealmBuild"]

log = logging.getLogger(__name__)

_BUILDING_S: Final = 15
"""A builder that died is waited for this long."""
_RENEW_S = 5.0
_POLL_S = 0.25
_LOST_CODES: Final = ("BLOB_NOT_FOUND", "BLOB_CORRUPT")
_PERMANENT_S: Final = 10 * 365 * 86_400


class RealmBuild:
    """A node's part in it. ``holder`` names this process among those of the realm."""

    def __init__(self, cache: GuestCache, blobs: Blobs, claims: Claims, holder: str) -> None:
        self._cache, self._blobs, self._claims, self._holder = cache, blobs, claims, holder
        self._name = f"guest.python.{source_key(stub_wasi=True)}"

    async def agree(self) -> str:
        """The realm's build: from now on the cache gives this one. Its digest.

        To be called on the bus's loop, once, before the guest is loaded; what takes long is done
        on other threads. Waits while another node builds. Without a server it fails, as every
        request does, and a cache nobody calls this for builds for itself.
        """
        while True:
            standing = await self._current_claim()
            if standing is None or not standing.value:
                mine = await self._claims.acquire(self._name, self._holder, _BUILDING_S)
            else:
                build = standing.value.decode()
                if await self._adopt(build):
                    return build
                mine = await self._claims.take_from_dead(standing, self._holder, _BUILDING_S)
            if mine is None:
                await asyncio.sleep(_POLL_S)
            elif (published := await self._publish(mine)) is not None:
                return published

    async def fetch(self, build: str) -> bytes | None:
        """A build of the realm's past, or of nodes that are newer; ``None`` if it is lost."""
        try:
            return await self._blobs.get(build)
        except Failed as failure:
            if failure.code not in _LOST_CODES:
                raise
            log.warning(
                "a guest build is lost; what began with it cannot go on",
                extra={"code": failure.code, "build": build},
            )
            return None

    async def _current_claim(self) -> Claim | None:
        claims = await self._claims.list(self._name)
        return next((claim for claim in claims if claim.name == self._name), None)

    async def _adopt(self, build: str) -> bool:
        """``False`` if the blob is lost or damaged: then the realm needs another build."""
        if await asyncio.to_thread(self._cache.adopt_stored, build):
            return True
        component = await self.fetch(build)
        if component is None:
            return False
        await asyncio.to_thread(self._cache.adopt, component)
        return True

    async def _publish(self, mine: Claim) -> str | None:
        """Build, store, and have the claim say so; ``None`` if it was lost meanwhile."""
        async with self._renewal(mine) as kept:
            component = await asyncio.to_thread(self._cache.component, stub_wasi=True)
            build = await self._blobs.put(component)
        try:
            await self._claims.renew(kept[-1], _PERMANENT_S, build.encode())
        except Failed as failure:
            if failure.code != "CLAIM_LOST":
                raise
            log.warning(
                "a guest build is lost; what began with it cannot go on",
                extra={"code": failure.code, "build": build},
            )
            return None
        return build

    @asynccontextmanager
    async def _renewal(self, claim: Claim) -> AsyncIterator[list[Claim]]:
        """The claim, renewed as long as this takes, as a list that ends with its newest form."""
        kept = [claim]
        renewing = asyncio.create_task(self._renew(kept))
        try:
            yield kept
        except BaseException:
            with suppress(Failed):  # It ends by itself, only later.
                await self._claims.release(kept[-1])
            raise
        finally:
            renewing.cancel()
            await asyncio.wait([renewing])

    async def _renew(self, kept: list[Claim]) -> None:
        while True:
            await asyncio.sleep(_RENEW_S)
            try:
                kept[:] = [await self._claims.renew(kept[-1], _BUILDING_S)]
            except Failed as failure:
                if failure.code == "CLAIM_LOST":
                    return  # Seen again, and acted on, when the build is done.
