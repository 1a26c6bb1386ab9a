"""Tools: functions a node offers to programs, and the calls of them.

``authoring`` is for authors of tools; ``builtin`` holds the tools for files and HTTP.
``call_rules`` decides which facts of calls are committed, ``waits`` those of awaited calls,
``resolutions`` those of an operator, and ``evolve`` folds them; all are pure.
``executor`` performs the effects, with ``call_slots`` for limits and a host: ``local_host`` for
functions of this process, ``remote_host`` for those of a ``worker``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rookery.schemas.lazy_names import lazy_names

if TYPE_CHECKING:
    from rookery.actors.tools.attempts import CallNotifier
    from rookery.actors.tools.authoring.credential import ToolCredential
    from rookery.actors.tools.authoring.decorator import tool
    from rookery.actors.tools.authoring.registry import ToolCallContext, ToolError, ToolRegistry
    from rookery.actors.tools.builtin.files import Mount, file_tools
    from rookery.actors.tools.builtin.http import Allowed, HttpCredential, http_tools
    from rookery.actors.tools.builtin.sleep import built_in_tools
    from rookery.actors.tools.call_requests import PolicyByDigest, ask_policy, host_default
    from rookery.actors.tools.call_rules import NO_WAITS, CallRules
    from rookery.actors.tools.call_slots import CallSlots, SlotStage, SlotSupply
    from rookery.actors.tools.capability_checks import CapabilityChecks, fault, fault_of
    from rookery.actors.tools.catalogue import (
        LOCAL,
        PEERS,
        RESOURCES,
        CatalogueTool,
        ToolCatalogue,
        catalogue_name,
        check_arguments,
        check_surface,
        ends_with_node,
        requires_approval,
    )
    from rookery.actors.tools.executor import CallExecutor
    from rookery.actors.tools.hosts.local_host import LocalToolHost
    from rookery.actors.tools.hosts.remote_host import RemoteToolHost
    from rookery.actors.tools.hosts.worker import Worker
    from rookery.actors.tools.resolutions import resolution_receipt, resolve
    from rookery.actors.tools.visible_tools import (
        NO_TOOLS,
        ToolSet,
        VisibleTool,
        VisibleTools,
        encode_entries,
        encode_tools,
    )
    from rookery.actors.tools.waits import (
        PeerEnd,
        PeerGate,
        WaitExecutor,
        check_sender,
        end_peer_wait,
        end_unapproved,
        end_wait,
        every_peer_open,
        peer_verdict,
    )

__all__ = [
    "LOCAL",
    "NO_TOOLS",
    "NO_WAITS",
    "PEERS",
    "RESOURCES",
    "Allowed",
    "CallExecutor",
    "CallNotifier",
    "CallRules",
    "CallSlots",
    "CapabilityChecks",
    "CatalogueTool",
    "HttpCredential",
    "LocalToolHost",
    "Mount",
    "PeerEnd",
    "PeerGate",
    "PolicyByDigest",
    "RemoteToolHost",
    "SlotStage",
    "SlotSupply",
    "ToolCallContext",
    "ToolCatalogue",
    "ToolCredential",
    "ToolError",
    "ToolRegistry",
    "ToolSet",
    "VisibleTool",
    "VisibleTools",
    "WaitExecutor",
    "Worker",
    "ask_policy",
    "built_in_tools",
    "catalogue_name",
    "check_arguments",
    "check_sender",
    "check_surface",
    "encode_entries",
    "encode_tools",
    "end_peer_wait",
    "end_unapproved",
    "end_wait",
    "ends_with_node",
    "every_peer_open",
    "fault",
    "fault_of",
    "file_tools",
    "host_default",
    "http_tools",
    "peer_verdict",
    "requires_approval",
    "resolution_receipt",
    "resolve",
    "tool",
]

__getattr__ = lazy_names(
    __name__,
    {
        "attempts": ("CallNotifier",),
        "authoring.credential": ("ToolCredential",),
        "authoring.decorator": ("tool",),
        "authoring.registry": ("ToolCallContext", "ToolError", "ToolRegistry"),
        "builtin.files": ("Mount", "file_tools"),
        "builtin.http": ("Allowed", "HttpCredential", "http_tools"),
        "builtin.sleep": ("built_in_tools",),
        "call_requests": ("PolicyByDigest", "ask_policy", "host_default"),
        "call_rules": ("CallRules", "NO_WAITS"),
        "call_slots": ("CallSlots", "SlotStage", "SlotSupply"),
        "capability_checks": ("CapabilityChecks", "fault", "fault_of"),
        "catalogue": (
            "CatalogueTool",
            "LOCAL",
            "PEERS",
            "RESOURCES",
            "ToolCatalogue",
            "catalogue_name",
            "check_arguments",
            "check_surface",
            "ends_with_node",
            "requires_approval",
        ),
        "executor": ("CallExecutor",),
        "hosts.local_host": ("LocalToolHost",),
        "hosts.remote_host": ("RemoteToolHost",),
        "hosts.worker": ("Worker",),
        "resolutions": ("resolution_receipt", "resolve"),
        "visible_tools": (
            "NO_TOOLS",
            "ToolSet",
            "VisibleTool",
            "VisibleTools",
            "encode_entries",
            "encode_tools",
        ),
        "waits": (
            "PeerEnd",
            "PeerGate",
            "WaitExecutor",
            "check_sender",
            "end_peer_wait",
            "end_unapproved",
            "end_wait",
            "every_peer_open",
            "peer_verdict",
        ),
    },
)
