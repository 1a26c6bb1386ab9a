"""The list of deciders: one entry per family of facts.

A node hosts one actor per entry, the metrics take their label values from it, and tests compare the
exported contract with it. A decider that is not listed here has no actor.

Entries name their modules as text: ``rookery.actors`` is imported by every tool author, and the
deciders behind it load the whole runtime.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final, NamedTuple

__all__ = ["DECIDERS", "DeciderEntry", "DeciderHost"]


class DeciderHost(Enum):
    """Which nodes host a decider."""

    KERNEL = auto()
    """Every node; the kernel creates it."""
    NODE = auto()
    """Every node."""
    EXECUTING_NODE = auto()
    """Nodes that execute programs (``node.driver = "sandbox"``)."""


class DeciderEntry(NamedTuple):
    """Where the decider of a family is defined, and which nodes host it."""

    module: str
    """Below ``rookery.actors``."""
    class_name: str
    host: DeciderHost = DeciderHost.NODE

    def load(self) -> Any:
        """Import the decider's class."""
        return getattr(import_module(f"rookery.actors.{self.module}"), self.class_name)


DECIDERS: Final[Mapping[str, DeciderEntry]] = MappingProxyType(
    {
        "node": DeciderEntry("kernel.runtime.node", "NodeDecider", DeciderHost.KERNEL),
        "session": DeciderEntry("admission.decider", "AdmissionDecider"),
        "turn": DeciderEntry("turns.decider", "TurnsDecider"),
        "sandbox": DeciderEntry(
            "session_snapshots.decider", "SnapshotsDecider", DeciderHost.EXECUTING_NODE
        ),
        "approval": DeciderEntry("approvals.decider", "ApprovalsDecider"),
        "hook": DeciderEntry("hooks.decider", "HooksDecider"),
        "surface": DeciderEntry("surfaces.decider", "SurfacesDecider"),
        "lease": DeciderEntry("leases.decider", "LeasesDecider"),
        "peer": DeciderEntry("peers.decider", "PeersDecider"),
    }
)
"""By family, in the order in which a node starts their actors."""
