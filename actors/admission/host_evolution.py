"""The session's host from admission's facts: for admission itself, and for whoever keeps a copy.

A copy may lag behind by what its keeper has not yet been handed; where that would matter, a commit
is fenced over the session's subjects.
"""

from __future__ import annotations

from rookery.actors.admission.admission_machine import ADMISSION
from rookery.actors.admission.lifecycle_machine import LIFECYCLE
from rookery.actors.kernel.machines.machine import Machine
from rookery.actors.kernel.machines.session_host import DESTROYED, SessionHost
from rookery.schemas.commands import HandleInput
from rookery.schemas.facts import session as facts

__all__ = ["apply_input", "evolve_host"]

_MACHINES: dict[type, Machine[SessionHost]] = {
    asked.fact: machine for machine in (LIFECYCLE, ADMISSION) for asked in machine.inputs.values()
}


def evolve_host(host: SessionHost, fact: facts.SessionFact) -> SessionHost:
    """The host after ``fact``. Total. A destroyed host takes nothing: what comes is a new one's."""
    if isinstance(fact, facts.HistoryRestarted):
        return SessionHost(phase=DESTROYED)
    machine = _MACHINES.get(type(fact))
    if machine is None:
        return host
    return machine.evolve(SessionHost() if host.phase is DESTROYED else host, fact)


def apply_input(host: SessionHost, asked: HandleInput) -> SessionHost:
    """The host after an input of admission's, for whoever has a host of its own; or a rejection."""
    draft = ADMISSION.candidate(asked.input, asked.params)
    return ADMISSION.evolve(host, ADMISSION.decide(host, asked.input, draft))
