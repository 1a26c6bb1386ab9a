"""Tool surfaces: the catalogue of a realm, and what its sessions take up of it.

``catalogue`` folds the catalogue's facts, and ``catalogue_changes`` serves the operator's
verbs, lists by ``surface_list``.
``live_catalogue`` is what a node offers: the tools, and a ``surface_host`` for each surface.
``session_rules`` decides what a session stages, applies and finalizes; ``executor`` performs it.
The rules of the two machines are in ``surface_machine`` and ``mcp_server_machine``.
"""

from __future__ import annotations

from rookery.actors.surfaces.catalogue_changes import CatalogueChanges
from rookery.actors.surfaces.connections.host_connections import WorkerConnections
from rookery.actors.surfaces.decider import SurfacesDecider
from rookery.actors.surfaces.executor import SurfaceExecutor
from rookery.actors.surfaces.live_catalogue import LiveCatalogue

__all__ = [
    "CatalogueChanges",
    "LiveCatalogue",
    "SurfaceExecutor",
    "SurfacesDecider",
    "WorkerConnections",
]
