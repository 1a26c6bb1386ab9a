"""``mcp://<surface>/<uri>``: the resources of the realm's MCP servers, which their policy opens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from rookery.actors.resources import CapturedBytes, CaptureStore
from rookery.actors.surfaces import LiveCatalogue, SurfaceConnection, SurfaceContent
from rookery.schemas.errors import Refused
from rookery.schemas.resources import ResolvedResource
from rookery.schemas.seed.content import ContentScope
from rookery.schemas.seed.refs import TrustClass
from rookery.schemas.seed.resource import ResourceReadRequest, ResourceScheme

__all__ = ["SurfaceResolver"]

JSON: Final = "application/json"
_SOURCE: Final = "session."


class SurfaceResolver:
    """Implements the port ``ResourceResolver``. What a server says is as foreign as its tools."""

    scheme = ResourceScheme("mcp")
    form = "mcp://<surface>/<the server's URI>"

    def __init__(self, live: LiveCatalogue, store: CaptureStore) -> None:
        self._live, self._store = live, store

    @property
    def names(self) -> tuple[str, ...]:
        """The surfaces that all sessions may read."""
        entries = self._live.offered.entries.values()
        return tuple(sorted(e.surface for e in entries if e.source.policy.resources and not e.only))

    async def resolve(self, request: ResourceReadRequest) -> ResolvedResource:
        """Read it from its server; without a URI, the list of what the server has."""
        surface, _, uri = request.uri.partition("://")[2].partition("/")
        budget = self._store.budget(request)
        connection = await self._connection(surface, request)
        found = await connection.read_resource(uri) if uri else await _listed(connection)
        data, mime = _one(found)
        captured = CapturedBytes(
            data[: budget + 1],
            ContentScope.EXTERNAL,
            TrustClass.EXTERNAL,
            mime=mime,
            name=request.uri,
        )
        return await self._store.store(request, self.scheme, captured)

    async def _connection(self, surface: str, request: ResourceReadRequest) -> SurfaceConnection:
        entry, host = self._live.offered.entries.get(surface), self._live.host(surface)
        session = request.source.id.as_str().removeprefix(_SOURCE)
        if entry is None or host is None or entry.only not in ("", session):
            known = ", ".join(self.names) or "none"
            raise Refused(
                "RESOURCE_NOT_FOUND",
                f"the realm has no surface {surface[:80]!r} to read from",
                hint=f"there are: {known[:400]}",
            )
        if not entry.source.policy.resources:
            raise Refused(
                "PERMISSION_DENIED",
                f"the policy of {surface} does not open its resources",
                hint='write "resources": true into its policy, and add it again',
            )
        return await host.connect()


async def _listed(connection: SurfaceConnection) -> Sequence[SurfaceContent]:
    return [SurfaceContent("", JSON, msgspec.json.encode(await connection.list_resources()))]


def _one(found: Sequence[SurfaceContent]) -> tuple[bytes, str]:
    """The bytes of a resource; of one with several parts a list of them."""
    if len(found) == 1:
        return found[0].data, found[0].mime
    return msgspec.json.encode(found), JSON
