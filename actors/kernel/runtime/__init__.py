"""The kernel at run time: what a node starts, and the partitions that it owns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rookery.schemas.lazy_names import lazy_names

if TYPE_CHECKING:
    from rookery.actors.kernel.runtime.kernel import Kernel
    from rookery.actors.kernel.runtime.node import KernelSettings, NodeDecider
    from rookery.actors.kernel.runtime.ownership import NodeIdentity
    from rookery.actors.kernel.runtime.recovery import save_idle_watermark

__all__ = ["Kernel", "KernelSettings", "NodeDecider", "NodeIdentity", "save_idle_watermark"]

__getattr__ = lazy_names(
    __name__,
    {
        "kernel": ("Kernel",),
        "node": (
            "KernelSettings",
            "NodeDecider",
        ),
        "ownership": ("NodeIdentity",),
        "recovery": ("save_idle_watermark",),
    },
)
