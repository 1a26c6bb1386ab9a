"""Tool hosts, which call tools: functions of this process, and tools of workers.

The names here are the port, for hosts in other packages.
"""

from __future__ import annotations

from rookery.actors.tools.hosts.host import (
    NotCalled,
    OutcomeUnknown,
    PastAttempt,
    TaskCreated,
    ToolHost,
)

__all__ = ["NotCalled", "OutcomeUnknown", "PastAttempt", "TaskCreated", "ToolHost"]
