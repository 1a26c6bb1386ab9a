"""The kernel: runs deciders, which are pure rules, as actors. It holds no rule of any family."""

from __future__ import annotations

from rookery.actors.kernel.metrics import NO_METRICS, KernelMetrics, NoMetrics

__all__ = ["NO_METRICS", "KernelMetrics", "NoMetrics"]
