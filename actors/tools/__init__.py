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
    from rookery.actors.tools.call_rules import CallRules, resolution_receipt, resolve
    from rookery.actors.tools.call_slots import CallSlots, SlotStage
    from rookery.actors.tools.catalogue import LOCAL, CatalogueTool, ToolCatalogue
    from rookery.actors.tools.effects import (
        AttemptLost,
        BeginCall,
        IntentStatus,
        call_effects,
        pending_call_effects,
    )
    from rookery.actors.tools.evolve import adopted_fact, evolve_calls
    from rookery.actors.tools.executor import CallExecutor
    from rookery.actors.tools.hosts.daemon_pool import DaemonThreadPool
    from rookery.actors.tools.hosts.host import ToolHost
    from rookery.actors.tools.hosts.local_host import LocalToolHost
    from rookery.actors.tools.hosts.remote_host import RemoteToolHost, check_surface
    from rookery.actors.tools.hosts.worker import Worker
    from rookery.actors.tools.state import CallPhase, SessionCalls

__all__ = [
    "LOCAL",
    "Allowed",
    "AttemptLost",
    "BeginCall",
    "CallExecutor",
    "CallNotifier",
    "CallPhase",
    "CallRules",
    "CallSlots",
    "CatalogueTool",
    "DaemonThreadPool",
    "IntentStatus",
    "LocalToolHost",
    "Mount",
    "RegisteredTool",
    "RemoteToolHost",
    "SessionCalls",
    "SlotStage",
    "ToolCallContext",
    "ToolCatalogue",
    "ToolError",
    "ToolHost",
    "ToolRegistry",
    "Worker",
    "adopted_fact",
    "call_effects",
    "check_surface",
    "evolve_calls",
    "file_tools",
    "http_tools",
    "load_registry",
    "pending_call_effects",
    "resolution_receipt",
    "resolve",
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
        "call_rules": ("CallRules", "resolution_receipt", "resolve"),
        "call_slots": ("CallSlots", "SlotStage"),
        "catalogue": ("LOCAL", "CatalogueTool", "ToolCatalogue"),
        "hosts.daemon_pool": ("DaemonThreadPool",),
        "effects": (
            "AttemptLost",
            "BeginCall",
            "IntentStatus",
            "call_effects",
            "pending_call_effects",
        ),
        "evolve": ("adopted_fact", "evolve_calls"),
        "executor": ("CallExecutor",),
        "hosts.host": ("ToolHost",),
        "hosts.local_host": ("LocalToolHost",),
        "hosts.remote_host": ("RemoteToolHost", "check_surface"),
        "state": ("CallPhase", "SessionCalls"),
        "hosts.worker": ("Worker",),
    },
)
