"""Tool surfaces: the catalogue of a realm, and what its sessions take up of it.

``catalogue`` folds the catalogue's facts, and ``catalogue_changes`` serves the operator's
verbs, lists by ``surface_list``.
``live_catalogue`` is what a node offers: the tools, and a ``surface_host`` for each surface.
``session_rules`` decides what a session stages, applies and finalizes; ``executor`` performs it.
The rules of the two machines are in ``surface_machine`` and ``mcp_server_machine``.
"""

from rookery.actors.surfaces.catalogue_changes import CatalogueChanges
from rookery.actors.surfaces.connections import (
    ConnectionReport,
    ListedResource,
    SurfaceConnection,
    SurfaceConnections,
    SurfaceContent,
    WorkerConnections,
)
from rookery.actors.surfaces.decider import SurfacesDecider
from rookery.actors.surfaces.executor import SurfaceExecutor
from rookery.actors.surfaces.live_catalogue import LiveCatalogue
from rookery.actors.surfaces.state import Surfaces
from rookery.actors.surfaces.surface_host import source_digest

__all__ = [
    "CatalogueChanges",
    "ConnectionReport",
    "ListedResource",
    "LiveCatalogue",
    "SurfaceConnection",
    "SurfaceConnections",
    "SurfaceContent",
    "SurfaceExecutor",
    "Surfaces",
    "SurfacesDecider",
    "WorkerConnections",
    "source_digest",
]
