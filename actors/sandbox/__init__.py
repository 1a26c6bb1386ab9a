"""The sandbox: programs in WebAssembly that reach the world through tools only, and can sleep.

Usable without a bus, a node or a server::

    from rookery.actors.sandbox import Tool, answering, open_sandbox
    from rookery.schemas.run import RunRequest

    with open_sandbox(key=b"seals the snapshots of sessions") as sandbox:
        sandbox.create("shop", tools=[Tool(name="price", awaited=True)], seed=b"1", now_ms=0)
        prices = answering({"price": {"tea": 3, "cake": 4}.get})
        code = "import asyncio\\nsum(await asyncio.gather(price('tea'), price('cake'))) * guests"
        request = RunRequest(session_id="shop", code=code, inputs={"guests": 2})
        print(sandbox.run(request, answer=prices, now_ms=0).result)

prints 14. Without ``answer`` the outcome is ``SuspendedRun`` with both calls: ``snapshot`` the
session, and ``restore`` and ``resume`` it with their answers in another process, whenever they are
known.

A Python program may count on ``PYTHON_MODULES`` of the standard library, and finds the rest of what
is pure Python in it. It has files of its own below ``/work``, in the interpreter's memory. What
needs a socket, a thread, a process or compiled code is refused before anything runs.
"""

from __future__ import annotations

from rookery.actors.sandbox.contract import (
    Outcome,
    ProgramCall,
    SuspendedRun,
    Tool,
    ToolResult,
)
from rookery.actors.sandbox.python.guest.standard_modules import MODULES as PYTHON_MODULES
from rookery.actors.sandbox.runtime.factory import answering, open_sandbox
from rookery.actors.sandbox.sandbox import Sandbox
from rookery.actors.sandbox.sessions.recorded_runs import RecordedCall, RecordedRun, ResultBatch
from rookery.actors.sandbox.sessions.snapshot import Snapshot
from rookery.schemas.calls import ToolFault

__all__ = [
    "PYTHON_MODULES",
    "Outcome",
    "ProgramCall",
    "RecordedCall",
    "RecordedRun",
    "ResultBatch",
    "Sandbox",
    "Snapshot",
    "SuspendedRun",
    "Tool",
    "ToolFault",
    "ToolResult",
    "answering",
    "open_sandbox",
]
