"""The tools a node offers, and those of surfaces that a run sees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rookery.schemas.lazy_names import lazy_names

if TYPE_CHECKING:
    from rookery.actors.tools.catalogue.catalogue import CatalogueTool, ToolCatalogue
    from rookery.actors.tools.catalogue.visible_tools import ToolSet, VisibleTool, VisibleTools

__all__ = ["CatalogueTool", "ToolCatalogue", "ToolSet", "VisibleTool", "VisibleTools"]

__getattr__ = lazy_names(
    __name__,
    {
        "catalogue": (
            "CatalogueTool",
            "ToolCatalogue",
        ),
        "visible_tools": (
            "ToolSet",
            "VisibleTool",
            "VisibleTools",
        ),
    },
)
