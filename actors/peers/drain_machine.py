"""comms_drain: whether the task that drains a session's peer traffic is wanted, and in which mode.

The mode is remembered until the task ends cleanly. Running the task is for whoever reads the
effects, who may be asked to spawn one that runs already. What the task brings is ``ingress``'s.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec
from msgspec.structs import replace

from rookery.actors.kernel.machines.machine import Edition, Input, Machine, Row, RowEffect, put
from rookery.actors.kernel.machines.session_host import (
    ATTACHED,
    LIVE,
    RUNNING,
    Host,
    session_registered,
)
from rookery.schemas.facts import peer as facts
from rookery.schemas.machines.peer import DrainExitReason, DrainMode

__all__ = ["DRAIN", "Drain", "DrainPhase"]


class DrainPhase(StrEnum):
    """How the draining task stands."""

    INACTIVE = "Inactive"
    RUNNING = "Running"
    STOPPED = "Stopped"
    EXITED_RESPAWNABLE = "ExitedRespawnable"


INACTIVE, DRAINING, HALTED, RESPAWNABLE = DrainPhase
PERSISTENT_HOST, FAILED = DrainMode.PERSISTENT_HOST, DrainExitReason.FAILED


class Drain(msgspec.Struct, frozen=True, kw_only=True):
    """The draining task of one session."""

    host: Host = Host()
    phase: DrainPhase = INACTIVE
    drain_mode: DrainMode | None = None


class SpawnDrainTask(RowEffect, frozen=True, kw_only=True):
    """The task is to run; if it does, there is nothing to do."""


class RuntimeNotice(RowEffect, frozen=True, kw_only=True):
    """Something people may want to know of the runtime."""

    kind: str
    detail: str


SPAWN = SpawnDrainTask()
EXIT_NOTICE = RuntimeNotice(kind="Drain", detail="drain exited")


def live(drain: Drain, _: Any) -> bool:
    return drain.host.phase in LIVE


def registered(drain: Drain, _: Any) -> bool:
    return drain.host.session_id is not None and drain.host.phase in LIVE


def respawnable(drain: Drain, asked: facts.DrainExitNotified) -> bool:
    """Only a persistent host's task is started again, and only if it failed."""
    return asked.reason is FAILED and drain.drain_mode is PERSISTENT_HOST


# fmt: off
_ROWS = (
    Row("EnsureDrainRunning", "ensure_drain_running",
        lambda d, _: d.host.phase in (ATTACHED, RUNNING) and session_registered(d.host),
        effects=(SPAWN,)),
    Row("SpawnDrain", "spawn_drain",
        lambda d, _: d.phase is not DRAINING and d.host.phase in LIVE,
        lambda d, a: replace(d, phase=DRAINING, drain_mode=a.mode),
        (SPAWN,)),
    Row("StopDrain", "stop_drain",
        lambda d, _: d.phase is DRAINING and d.host.phase in LIVE,
        put(phase=HALTED)),
    Row("DrainExitedClean", "drain_exited_clean", live,
        put(phase=INACTIVE, drain_mode=None)),
    Row("DrainExitedRespawnable", "drain_exited_respawnable", live,
        put(phase=RESPAWNABLE)),
    Row("NotifyDrainExited", "notify_drain_exited", registered,
        effects=(EXIT_NOTICE,), edition=Edition.SEED),
    Row("NotifyDrainExitedRunningRespawnable", "notify_drain_exited",
        lambda d, a: d.phase is DRAINING and respawnable(d, a) and registered(d, a),
        put(phase=RESPAWNABLE),
        (EXIT_NOTICE,), Edition.HEAD),
    Row("NotifyDrainExitedRunningStopped", "notify_drain_exited",
        lambda d, a: d.phase is DRAINING and not respawnable(d, a) and registered(d, a),
        put(phase=HALTED),
        (EXIT_NOTICE,), Edition.HEAD),
    Row("NotifyDrainExitedElsewhere", "notify_drain_exited",
        lambda d, a: d.phase is not DRAINING and registered(d, a),
        effects=(EXIT_NOTICE,), edition=Edition.HEAD),
)
# fmt: on

DRAIN = Machine(
    "comms_drain",
    handle="CommsDrainHandle",
    phases=tuple(DrainPhase),
    initial=Drain(),
    inputs={
        "ensure_drain_running": Input(facts.DrainEnsured),
        "spawn_drain": Input(facts.DrainSpawned, ("mode",)),
        "stop_drain": Input(facts.DrainStopped),
        "drain_exited_clean": Input(facts.DrainExitedClean),
        "drain_exited_respawnable": Input(facts.DrainExitedRespawnable),
        "notify_drain_exited": Input(facts.DrainExitNotified, ("reason",)),
    },
    rows=_ROWS,
    host_phase=lambda drain: drain.host.phase,
)
