"""The seed's handles as typed remote faces of the live machines, one class a trait.

A method sends one input on ``api.<verb>.<key>`` and returns what the trait returns, or the
machine's view where the trait returns nothing. A rejection raises ``TransitionRejected``; a method
that returns a ``bool`` answers ``False`` if the present state refuses the input. ``observe`` gives
a baseline and then the later facts.

    async with connect() as client:
        context = SessionContextHandle(client, "demo")
        await context.context_advanced(now_ms)
"""

from rookery.bus.client.machines.machine_handle import Baseline, ObservedFact
from rookery.bus.client.machines.peers import (
    CommsDrainHandle,
    InteractionStreamHandle,
    PeerCommsHandle,
    PeerInteractionHandle,
    SessionContextHandle,
)
from rookery.bus.client.machines.surfaces import (
    AuthLeaseHandle,
    ExternalToolSurfaceHandle,
    ExternalToolSurfaceTransition,
    McpServerLifecycleHandle,
)
from rookery.bus.client.machines.turns import (
    ModelRoutingHandle,
    RealtimeProductTurnHandle,
    SessionAdmissionHandle,
    TurnStateHandle,
    WorkOrigin,
)

__all__ = [
    "AuthLeaseHandle",
    "Baseline",
    "CommsDrainHandle",
    "ExternalToolSurfaceHandle",
    "ExternalToolSurfaceTransition",
    "InteractionStreamHandle",
    "McpServerLifecycleHandle",
    "ModelRoutingHandle",
    "ObservedFact",
    "PeerCommsHandle",
    "PeerInteractionHandle",
    "RealtimeProductTurnHandle",
    "SessionAdmissionHandle",
    "SessionContextHandle",
    "TurnStateHandle",
    "WorkOrigin",
]
