"""Which of the node's processes this one is, and what share of the node's limits it has.

Memory is divided, and so is the quota of runs in flight, by partitions. The supervisor allocates
the slots of calls, because one slot cannot be divided.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from rookery.actors.tools import DeclaredLimit, SlotNotice, SlotSupply
from rookery.ops.server import RealmServer

__all__ = ["WHOLE_NODE", "ProcessShare", "SlotLink"]


class SlotLink(SlotSupply, Protocol):
    """The allocator of slots, as a process reaches it."""

    def open(
        self, declared: Sequence[DeclaredLimit], on_notice: Callable[[SlotNotice], None]
    ) -> None:
        """Declare this process's tools. ``on_notice`` is called on a thread of the link."""


@dataclass(frozen=True, kw_only=True)
class ProcessShare:
    """One of ``count`` processes of a node."""

    number: int = 1
    count: int = 1
    server: RealmServer | None = None
    """The server to use; ``None`` for a process that finds or starts its own."""
    is_embedded: bool = False
    """Whether the supervisor runs that server."""
    slots: SlotLink | None = None
    """``None``: this process is the whole node."""

    def name_of(self, node: str) -> str:
        """The name of this process: its node's name, and its number if there are several."""
        return node if self.slots is None else f"{node}.{self.number}"

    def divide(self, total: int) -> int:
        """This process's part of a limit of the node."""
        return total // self.count


WHOLE_NODE: Final = ProcessShare()
