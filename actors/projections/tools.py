"""The query ``tools``: the tools a node offers, with their declarations."""

from __future__ import annotations

from collections.abc import Iterable

from rookery.actors.tools import CatalogueTool
from rookery.bus.ports import Delivery
from rookery.schemas.codec import decode_command
from rookery.schemas.commands import ToolsQuery
from rookery.schemas.lists import ToolList, ToolView

__all__ = ["ToolQueryHandler"]


class ToolQueryHandler:
    """Replies with the tools of one node; the nodes of a realm may offer different tools."""

    def __init__(self, catalogue: Iterable[CatalogueTool]) -> None:
        self._catalogue = catalogue

    async def handle(self, delivery: Delivery) -> ToolList:
        """The query ``tools``."""
        query = decode_command(delivery.body, ToolsQuery, content_type=delivery.content_type)
        named = [t for t in self._catalogue if query.name in (None, t.available.name)]
        return ToolList(tools=tuple(map(_tool_view, named)))


def _tool_view(tool: CatalogueTool) -> ToolView:
    return ToolView(
        surface=tool.surface,
        awaited=tool.available.awaited,
        waits_for=tool.waits_for,
        schema_digest=tool.available.schema_digest,
        capability=tool.capability,
    )
