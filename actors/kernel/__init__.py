"""The kernel: turns the pure rules of a decider into an actor. It contains no decider's rules."""

from rookery.actors.kernel.decider import Decider, Effect
from rookery.actors.kernel.effect_runner import EffectHandler
from rookery.actors.kernel.fact_builder import FactBuilder
from rookery.actors.kernel.local_ask import AskActor
from rookery.actors.kernel.metrics import NO_METRICS, KernelMetrics, NoMetrics

__all__ = [
    "NO_METRICS",
    "AskActor",
    "Decider",
    "Effect",
    "EffectHandler",
    "FactBuilder",
    "KernelMetrics",
    "NoMetrics",
]
