"""The sandbox: runs programs in WebAssembly that call tools and can be suspended.

It works without a bus, a node or a server::

    from rookery.actors.sandbox import Tool, answering, open_sandbox
    from rookery.schemas.run import RunRequest

    with open_sandbox(key=b"seals the snapshots of sessions") as sandbox:
        sandbox.create("shop", tools=[Tool(name="price", awaited=True)], seed=b"1", now_ms=0)
        prices = answering({"price": {"tea": 3, "cake": 4}.get})
        code = "import asyncio\\nsum(await asyncio.gather(price('tea'), price('cake'))) * guests"
        request = RunRequest(session_id="shop", code=code, inputs={"guests": 2})
        print(sandbox.run(request, answer=prices, now_ms=0).result)

prints 14. Without ``answer`` the outcome is a ``SuspendedRun`` with both calls: take a ``snapshot``
of the session; later ``restore`` it, in another process if need be, and ``resume`` it with the
results.

A Python program can import ``PYTHON_MODULES`` and most other pure-Python modules of the standard
library. Each session has files below ``/work``, in the interpreter's memory. An import of sockets,
threads, processes or compiled code is refused before the program runs.
"""

from __future__ import annotations

from rookery.actors.sandbox.contract import (
    STATUS_OF_CODE,
    CallTool,
    FilesStep,
    Guest,
    OnOutput,
    Outcome,
    PendingResult,
    ProgramCall,
    StepEnded,
    SuspendedRun,
    Tool,
    ToolResult,
    ignore_output,
)
from rookery.actors.sandbox.runtime.factory import answering, open_sandbox
from rookery.actors.sandbox.sandbox import Sandbox
from rookery.actors.sandbox.validate import check_new_request, limits_in_force

__all__ = [
    "STATUS_OF_CODE",
    "CallTool",
    "FilesStep",
    "Guest",
    "OnOutput",
    "Outcome",
    "PendingResult",
    "ProgramCall",
    "Sandbox",
    "StepEnded",
    "SuspendedRun",
    "Tool",
    "ToolResult",
    "answering",
    "check_new_request",
    "ignore_output",
    "limits_in_force",
    "open_sandbox",
]
