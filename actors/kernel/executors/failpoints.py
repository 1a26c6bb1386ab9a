"""Named places at which a crash test kills the process.

``ROOKERY_FAILPOINT=decided`` kills at the first pass, ``decided@7`` at the seventh, counted from
the node's first share of partitions. The process gets SIGKILL: no handler runs and nothing is
flushed.
"""

from __future__ import annotations

import os
import signal

from rookery.schemas.errors import Refused

__all__ = [
    "AGENT_FAILPOINTS",
    "CHILD_FAILPOINTS",
    "FAILPOINTS",
    "HOOK_FAILPOINTS",
    "LEASE_FAILPOINTS",
    "MODEL_FAILPOINTS",
    "PEER_FAILPOINTS",
    "RUN_FAILPOINTS",
    "SURFACE_FAILPOINTS",
    "TASK_FAILPOINTS",
    "Failpoints",
]

FAILPOINTS = (
    "pulled",
    "decided",
    "append_sent",
    "appended",
    "acked",
    "evolved",
    "replied",
    "effect_started",
)
"""In the order a command passes them."""

RUN_FAILPOINTS = (
    "facts_held",
    "call_ended",
    "outcome_passed",
)
"""In the order a run passes them: its start waits to be committed with its next step, the tool of a
call has ended, and the program has the outcome. None of that is recorded yet."""

HOOK_FAILPOINTS = (
    "hook_invoked",
    "hook_answered",
    "hook_staged",
)
"""In the order an invocation passes them: the hook is about to be asked, its answer is there, and
what it said is about to be recorded."""

TASK_FAILPOINTS = ("task_created",)
"""A surface has made a task of a call, and that is not recorded."""

MODEL_FAILPOINTS = (
    "model_request_recorded",
    "model_answered",
)
"""In the order a model step passes them: its question is on record and was not asked; the answer is
there and is not recorded."""

CHILD_FAILPOINTS = (
    "child_starting",
    "child_started",
    "child_cancelling",
    "child_ended",
    "child_reported",
)
"""Of the node of a parent: the session of a child is about to get its command, has it, or is about
to get the one that cancels it. Of the node of the child: its run has ended, and the command that
ends the call of the parent is stored."""

LEASE_FAILPOINTS = (
    "refresh_intended",
    "provider_answered",
    "credential_sealed",
    "refresh_recorded",
    "waits_ended",
)
"""In the order a refresh passes them; at the last, the sessions of waiting calls have the commands
that end their waits, and the lease has not recorded it."""

SURFACE_FAILPOINTS = (
    "catalogue_listed",
    "catalogue_recorded",
    "surfaces_taken_up",
    "surface_connected",
    "surface_completed",
    "surface_settled",
)
"""In the order in which a change passes them: the tools of a new surface are listed, the catalogue
has the change, a session has applied it at a boundary, the node has connected, the session has its
tools, and a removed surface has no call in flight."""


PEER_FAILPOINTS = (
    "envelope_signed",
    "envelope_published",
    "delivery_recorded",
)
"""In the order an envelope passes them on its way out."""

AGENT_FAILPOINTS = (
    "agent_called",
    "agent_answered",
    "agent_answer_recorded",
    "agent_task_read",
    "agent_response_recorded",
)
"""In the order in which a request to an agent elsewhere passes them: it is about to leave, the
agent has it, that is on record, a new state of its task is known, and its end is on record."""

HANDLER_FAILPOINTS = ("item_handled",)
"""The end of a run that handles a peer's item is on record with the response."""


class Failpoints:
    """The armed failpoint; all others pass."""

    def __init__(self, spec: str = "") -> None:
        of_runs = (*FAILPOINTS, *RUN_FAILPOINTS, *HOOK_FAILPOINTS, *MODEL_FAILPOINTS)
        known = (
            *of_runs,
            *TASK_FAILPOINTS,
            *LEASE_FAILPOINTS,
            *SURFACE_FAILPOINTS,
            *PEER_FAILPOINTS,
            *AGENT_FAILPOINTS,
            *HANDLER_FAILPOINTS,
        )
        name, _, count = (spec if "@" in spec else f"{spec}@1").partition("@")
        if spec and (name not in known or not count.isdecimal() or int(count) < 1):
            raise Refused(
                "CONFIG_INVALID",
                f"ROOKERY_FAILPOINT={spec!r} names no failpoint",
                hint=f"one of {', '.join(known)}, optionally with @N for the N-th pass",
            )
        self._name, self._armed = name, ""
        self._left = int(count)

    def arm(self) -> None:
        """Start counting passes."""
        self._armed = self._name

    def hit(self, name: str) -> None:
        """Kill the process if this is the armed place and pass."""
        if name == self._armed:
            self._left -= 1
            if self._left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)
