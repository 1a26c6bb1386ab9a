"""comms_drain: whether the task that drains a session's peer traffic is wanted, and in which mode.

The mode is stored until the task ends without an error. The executor of the effects runs the task;
it may get a spawn effect while the task runs.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec
from msgspec.structs import replace

from rookery.actors.kernel.machines import (
    ATTACHED,
    LIVE,
    RUNNING,
    Edition,
    Machine,
    MachineInput,
    SessionHost,
    Transition,
    TransitionEffect,
    session_registered,
    set_fields,
)
from rookery.schemas.facts import peer as facts
from rookery.schemas.machines.peer import DrainExitReason, DrainMode

__all__ = ["DRAIN", "CommsDrain", "DrainPhase"]


class DrainPhase(StrEnum):
    """The phase of the drain task."""

    INACTIVE = "Inactive"
    RUNNING = "Running"
    STOPPED = "Stopped"
    EXITED_RESPAWNABLE = "ExitedRespawnable"


INACTIVE, DRAINING, HALTED, RESPAWNABLE = DrainPhase
PERSISTENT_HOST, FAILED = DrainMode.PERSISTENT_HOST, DrainExitReason.FAILED


class CommsDrain(msgspec.Struct, frozen=True, kw_only=True):
    """The drain task of one session."""

    host: SessionHost = SessionHost()
    phase: DrainPhase = INACTIVE
    drain_mode: DrainMode | None = None


class SpawnDrainTask(TransitionEffect, frozen=True, kw_only=True):
    """Ensure that the task runs."""


class RuntimeNotice(TransitionEffect, frozen=True, kw_only=True):
    """A notice about the runtime, for people."""

    kind: str
    detail: str


SPAWN = SpawnDrainTask()
EXIT_NOTICE = RuntimeNotice(kind="Drain", detail="drain exited")


def is_live(drain: CommsDrain, _: Any) -> bool:
    return drain.host.phase in LIVE


def is_registered(drain: CommsDrain, _: Any) -> bool:
    return drain.host.session_id is not None and drain.host.phase in LIVE


def is_respawnable(drain: CommsDrain, fact: facts.DrainExitNotified) -> bool:
    """Only a failed task of a persistent host is started again."""
    return fact.reason is FAILED and drain.drain_mode is PERSISTENT_HOST


# fmt: off
_ROWS = (
    Transition("EnsureDrainRunning", "ensure_drain_running",
        lambda d, _: d.host.phase in (ATTACHED, RUNNING) and session_registered(d.host),
        effects=(SPAWN,)),
    Transition("SpawnDrain", "spawn_drain",
        lambda d, _: d.phase is not DRAINING and d.host.phase in LIVE,
        lambda d, a: replace(d, phase=DRAINING, drain_mode=a.mode),
        (SPAWN,)),
    Transition("StopDrain", "stop_drain",
        lambda d, _: d.phase is DRAINING and d.host.phase in LIVE,
        set_fields(phase=HALTED)),
    Transition("DrainExitedClean", "drain_exited_clean", is_live,
        set_fields(phase=INACTIVE, drain_mode=None)),
    Transition("DrainExitedRespawnable", "drain_exited_respawnable", is_live,
        set_fields(phase=RESPAWNABLE)),
    Transition("NotifyDrainExited", "notify_drain_exited", is_registered,
        effects=(EXIT_NOTICE,), edition=Edition.SEED),
    Transition("NotifyDrainExitedRunningRespawnable", "notify_drain_exited",
        lambda d, a: d.phase is DRAINING and is_respawnable(d, a) and is_registered(d, a),
        set_fields(phase=RESPAWNABLE),
        (EXIT_NOTICE,), Edition.HEAD),
    Transition("NotifyDrainExitedRunningStopped", "notify_drain_exited",
        lambda d, a: d.phase is DRAINING and not is_respawnable(d, a) and is_registered(d, a),
        set_fields(phase=HALTED),
        (EXIT_NOTICE,), Edition.HEAD),
    Transition("NotifyDrainExitedElsewhere", "notify_drain_exited",
        lambda d, a: d.phase is not DRAINING and is_registered(d, a),
        effects=(EXIT_NOTICE,), edition=Edition.HEAD),
)
# fmt: on

DRAIN = Machine(
    "comms_drain",
    handle="CommsDrainHandle",
    phases=tuple(DrainPhase),
    initial=CommsDrain(),
    inputs={
        "ensure_drain_running": MachineInput(facts.DrainEnsured),
        "spawn_drain": MachineInput(facts.DrainSpawned, ("mode",)),
        "stop_drain": MachineInput(facts.DrainStopped),
        "drain_exited_clean": MachineInput(facts.DrainExitedClean),
        "drain_exited_respawnable": MachineInput(facts.DrainExitedRespawnable),
        "notify_drain_exited": MachineInput(facts.DrainExitNotified, ("reason",)),
    },
    rows=_ROWS,
    host_phase=lambda drain: drain.host.phase,
)
