"""The kernel: turns the pure rules of a decider into an actor. It contains no decider's rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rookery.schemas.lazy_names import lazy_names

if TYPE_CHECKING:
    from rookery.actors.kernel.command_router import QueryHandler
    from rookery.actors.kernel.committer import Commit
    from rookery.actors.kernel.decider import (
        Decider,
        Effect,
        FactBuilder,
        FoldedFacts,
        ReadScope,
        codecs_of,
        decode_map,
    )
    from rookery.actors.kernel.effect_runner import EffectHandler, NotExecutableHere
    from rookery.actors.kernel.entity import Entity, PendingCommand
    from rookery.actors.kernel.failpoints import Failpoints
    from rookery.actors.kernel.kernel import Kernel
    from rookery.actors.kernel.kernel_settings import (
        NO_METRICS,
        KernelMetrics,
        KernelSettings,
        ignore_facts,
    )
    from rookery.actors.kernel.mailbox import Mailbox
    from rookery.actors.kernel.messages import AskActor
    from rookery.actors.kernel.node_decider import FactRecorded, NodeDecider, RecordFact
    from rookery.actors.kernel.ownership import (
        CLAIM_S,
        CLUSTER_CLAIM_S,
        NodeIdentity,
        node_of_holder,
        process_of_holder,
    )
    from rookery.actors.kernel.recovery import save_idle_watermark
    from rookery.actors.kernel.unit_of_work import UnitOfWork

__all__ = [
    "CLAIM_S",
    "CLUSTER_CLAIM_S",
    "NO_METRICS",
    "AskActor",
    "Commit",
    "Decider",
    "Effect",
    "EffectHandler",
    "Entity",
    "FactBuilder",
    "FactRecorded",
    "Failpoints",
    "FoldedFacts",
    "Kernel",
    "KernelMetrics",
    "KernelSettings",
    "Mailbox",
    "NodeDecider",
    "NodeIdentity",
    "NotExecutableHere",
    "PendingCommand",
    "QueryHandler",
    "ReadScope",
    "RecordFact",
    "UnitOfWork",
    "codecs_of",
    "decode_map",
    "ignore_facts",
    "node_of_holder",
    "process_of_holder",
    "save_idle_watermark",
]

__getattr__ = lazy_names(
    __name__,
    {
        "command_router": ("QueryHandler",),
        "committer": ("Commit",),
        "decider": (
            "Decider",
            "Effect",
            "FactBuilder",
            "FoldedFacts",
            "ReadScope",
            "codecs_of",
            "decode_map",
        ),
        "effect_runner": ("EffectHandler", "NotExecutableHere"),
        "entity": ("Entity", "PendingCommand"),
        "failpoints": ("Failpoints",),
        "kernel": ("Kernel",),
        "kernel_settings": ("KernelMetrics", "KernelSettings", "NO_METRICS", "ignore_facts"),
        "mailbox": ("Mailbox",),
        "messages": ("AskActor",),
        "node_decider": ("FactRecorded", "NodeDecider", "RecordFact"),
        "ownership": (
            "CLAIM_S",
            "CLUSTER_CLAIM_S",
            "NodeIdentity",
            "node_of_holder",
            "process_of_holder",
        ),
        "recovery": ("save_idle_watermark",),
        "unit_of_work": ("UnitOfWork",),
    },
)
