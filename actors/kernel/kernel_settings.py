"""``KernelSettings``: what ``ops`` decides about a kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rookery.actors.kernel.failpoints import Failpoints
from rookery.actors.kernel.metrics import KernelMetrics, NoMetrics
from rookery.actors.kernel.partitions.ownership import CLAIM_S, NodeIdentity
from rookery.actors.keys import SigningKey

__all__ = ["KernelSettings"]


@dataclass(frozen=True, kw_only=True)
class KernelSettings:
    """The settings that ``ops`` gives a kernel."""

    identity: NodeIdentity
    now_ms: Callable[[], int]
    uptime_s: Callable[[], float]
    """A clock that is never set and runs while the machine sleeps."""
    metrics: KernelMetrics = field(default_factory=NoMetrics)
    failpoints: Failpoints = field(default_factory=Failpoints)
    claim_s: int = CLAIM_S
    processes: int = 1
    """How many processes start together as one node; they share the partitions at once."""
    passivate_after_ms: int = 600_000
    drain_timeout_s: float = 10.0
    payload_bytes_max: int = 1 << 20
    key: SigningKey | None = None
    """Signs checkpoints of what this node appends; without one there are none."""
