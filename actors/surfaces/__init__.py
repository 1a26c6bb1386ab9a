"""Tool surfaces of a session, and the MCP servers behind some of them. Not joined to runs yet."""

from rookery.actors.surfaces.decider import SurfacesDecider
from rookery.actors.surfaces.mcp_server_machine import MCP_SERVERS
from rookery.actors.surfaces.state import Surfaces
from rookery.actors.surfaces.surface_machine import SURFACES

__all__ = [
    "MCP_SERVERS",
    "SURFACES",
    "Surfaces",
    "SurfacesDecider",
]
