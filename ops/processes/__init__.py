"""A node in several processes, behind one ``rookery up``.

``process_group`` is the supervisor: it starts the processes, restarts one that ended, drains them
together, and answers for all of them. ``managed_process`` is one of them as the supervisor sees it,
``supervised_node`` is that process itself: a whole node with partitions of its own, under the name
``NAME.1``. They exchange messages over a socket, and end together. ``process_share`` says which
limits are divided; slots of calls are allocated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rookery.schemas.lazy_names import lazy_names

if TYPE_CHECKING:
    from rookery.ops.processes.process_group import ProcessGroup
    from rookery.ops.processes.process_share import WHOLE_NODE, ProcessShare
    from rookery.ops.processes.signals import StopEvent, stop_signals

__all__ = ["WHOLE_NODE", "ProcessGroup", "ProcessShare", "StopEvent", "stop_signals"]

__getattr__ = lazy_names(
    __name__,
    {
        "process_group": ("ProcessGroup",),
        "process_share": ("WHOLE_NODE", "ProcessShare"),
        "signals": ("StopEvent", "stop_signals"),
    },
)
