"""The tools a node offers, with what was declared of each: what ``tools list`` shows."""

from __future__ import annotations

from collections.abc import Iterable

from rookery.actors.tools.catalogue import VisibleTool
from rookery.bus.ports import Delivery
from rookery.schemas.codec import decode_command
from rookery.schemas.commands import ToolsQuery
from rookery.schemas.lists import ToolList, ToolView

__all__ = ["ToolsView"]


class ToolsView:
    """Of one node; the nodes of a realm may offer different ones."""

    def __init__(self, visible: Iterable[VisibleTool]) -> None:
        self._visible = visible

    async def answer(self, delivery: Delivery) -> ToolList:
        """The query ``tools``."""
        query = decode_command(delivery.body, ToolsQuery, content_type=delivery.content_type)
        named = [t for t in self._visible if query.name in (None, t.offered.name)]
        return ToolList(tools=tuple(map(_view, named)))


def _view(tool: VisibleTool) -> ToolView:
    return ToolView(
        surface=tool.surface,
        awaited=tool.offered.awaited,
        schema_digest=tool.offered.schema_digest,
        capability=tool.capability,
    )
