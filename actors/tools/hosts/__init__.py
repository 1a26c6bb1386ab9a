"""Tool hosts, which call tools: functions of this process, and tools of workers.

The names here are for hosts in other packages.
"""

from rookery.actors.tools.hosts.host import (
    NotCalled,
    OutcomeUnknown,
    PastAttempt,
    TaskCreated,
    always_allowed,
)

__all__ = ["NotCalled", "OutcomeUnknown", "PastAttempt", "TaskCreated", "always_allowed"]
