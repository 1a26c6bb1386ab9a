"""Tools: functions a node offers to programs, and the calls of them.

``authoring`` is for authors of tools; ``builtin`` holds the tools for files and HTTP.
``call_rules`` decides which facts of calls are committed, ``evolve`` folds them; both are pure.
``executor`` performs the effects, with ``call_slots`` for limits and a host: ``local_host`` for
functions of this process, ``remote_host`` for those of a ``worker``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rookery.schemas.lazy_names import lazy_names

if TYPE_CHECKING:
    from rookery.actors.tools.authoring.decorator import tool
    from rookery.actors.tools.authoring.loader import load_registry
    from rookery.actors.tools.authoring.registry import (
        RegisteredTool,
        ToolCallContext,
        ToolError,
        ToolRegistry,
    )
    from rookery.actors.tools.builtin.files import Mount, file_tools
    from rookery.actors.tools.builtin.http import Allowed, http_tools
    from rookery.actors.tools.call_notifier import CallNotifier
    from rookery.actors.tools.call_slots import CallSlots
    from rookery.actors.tools.catalogue import LOCAL, CatalogueTool, ToolCatalogue
    from rookery.actors.tools.decider import ToolsDecider
    from rookery.actors.tools.executor import CallExecutor
    from rookery.actors.tools.hosts.daemon_pool import DaemonThreadPool
    from rookery.actors.tools.hosts.host import ToolHost
    from rookery.actors.tools.hosts.local_host import LocalToolHost
    from rookery.actors.tools.hosts.remote_host import RemoteToolHost, check_surface
    from rookery.actors.tools.hosts.worker import Worker

__all__ = [
    "LOCAL",
    "Allowed",
    "CallExecutor",
    "CallNotifier",
    "CallSlots",
    "CatalogueTool",
    "DaemonThreadPool",
    "LocalToolHost",
    "Mount",
    "RegisteredTool",
    "RemoteToolHost",
    "ToolCallContext",
    "ToolCatalogue",
    "ToolError",
    "ToolHost",
    "ToolRegistry",
    "ToolsDecider",
    "Worker",
    "check_surface",
    "file_tools",
    "http_tools",
    "load_registry",
    "tool",
]

__getattr__ = lazy_names(
    __name__,
    {
        "authoring.decorator": ("tool",),
        "authoring.loader": ("load_registry",),
        "authoring.registry": ("RegisteredTool", "ToolCallContext", "ToolError", "ToolRegistry"),
        "builtin.files": ("Mount", "file_tools"),
        "builtin.http": ("Allowed", "http_tools"),
        "call_notifier": ("CallNotifier",),
        "call_slots": ("CallSlots",),
        "catalogue": ("LOCAL", "CatalogueTool", "ToolCatalogue"),
        "hosts.daemon_pool": ("DaemonThreadPool",),
        "decider": ("ToolsDecider",),
        "executor": ("CallExecutor",),
        "hosts.host": ("ToolHost",),
        "hosts.local_host": ("LocalToolHost",),
        "hosts.remote_host": ("RemoteToolHost", "check_surface"),
        "hosts.worker": ("Worker",),
    },
)
