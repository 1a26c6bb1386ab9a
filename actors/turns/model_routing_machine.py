"""model_routing: the model that a session works with until another is requested.

Values are not compared: setting the same baseline again begins a new epoch. Another machine
switches a single turn to another model; it needs a baseline.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec
from msgspec.structs import replace

from rookery.actors.kernel.machines import (
    LIVE,
    Machine,
    MachineInput,
    SessionHost,
    Transition,
    TransitionEffect,
    session_registered,
)
from rookery.schemas.facts import turn as facts

__all__ = ["MODEL_ROUTING", "ModelRouting", "ModelRoutingStatusChanged", "RoutingPhase"]


class RoutingPhase(StrEnum):
    """Whether a baseline is set."""

    UNSET = "Unset"
    SET = "Set"


class ModelRouting(msgspec.Struct, frozen=True, kw_only=True):
    """The baseline, and how often it was set."""

    phase: RoutingPhase = RoutingPhase.UNSET
    baseline_model: str | None = None
    baseline_realtime: bool | None = None
    topology_epoch: int = 0
    host: SessionHost = SessionHost()


class ModelRoutingStatusChanged(TransitionEffect, frozen=True, kw_only=True):
    """Model choices based on an older epoch are outdated."""

    topology_epoch: int


def set_baseline(routing: ModelRouting, fact: facts.BaselineSet) -> ModelRouting:
    return replace(
        routing,
        phase=RoutingPhase.SET,
        baseline_model=fact.model,
        baseline_realtime=fact.realtime_capable,
        topology_epoch=routing.topology_epoch + 1,
    )


def a_baseline_was_set_at_least_once(routing: ModelRouting) -> bool:
    known = routing.baseline_model is not None and routing.baseline_realtime is not None
    return known == (routing.phase is RoutingPhase.SET) == (routing.topology_epoch > 0)


MODEL_ROUTING = Machine(
    "model_routing",
    handle="ModelRoutingHandle",
    phases=tuple(RoutingPhase),
    initial=ModelRouting(),
    inputs={"set_baseline": MachineInput(facts.BaselineSet, ("model", "realtime_capable"))},
    rows=(
        Transition(
            "SetBaseline",
            "set_baseline",
            lambda routing, _: routing.host.phase in LIVE and session_registered(routing.host),
            set_baseline,
            (lambda routing, _: ModelRoutingStatusChanged(topology_epoch=routing.topology_epoch),),
        ),
    ),
    invariants=(a_baseline_was_set_at_least_once,),
    host_phase=lambda routing: routing.host.phase,
)
