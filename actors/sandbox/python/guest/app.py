"""The application inside the guest: one namespace a session, one request at a time.

``serve`` starts a run, resumes a suspended run or only checks a source. The reply holds a value, an
error, or the calls the run waits for. The host enforces the limits on calls, time, memory and
output; Python enforces the depth of the stack.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import gc
import importlib.util
import inspect
import json
import random
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any, cast

import wit_world
from guest import checks, clock, discovery, output, refusals, standard_modules
from guest.faults import count_characters, describe, nul_character, too_complex, tool_error
from guest.loop import GuestLoop, PendingCall
from guest.output import STDERR, STDOUT
from guest.results import ResultBinding, binding_of, reply_with
from guest.system import async_runs, awaited_values, databases, file_steps, interpreter
from guest.system.file_tree import TREE
from guest.system.library import LIBRARY
from guest.system.zones import ZONES

__all__ = ["WitWorld", "prepare"]

_AWAIT = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
_OWN_DEPTH = 1000
"""Stack frames for the guest's own code, outside the part that the run's limit covers."""

Code = types.CodeType
encode = json.JSONEncoder(allow_nan=False).encode
encode_plainly = json.JSONEncoder(allow_nan=False, ensure_ascii=False).encode
decode = json.JSONDecoder().raw_decode


class GuestSession:
    """The state of a session: it outlives each run."""

    def __init__(self) -> None:
        self.main = types.ModuleType("__main__")
        self.names = self.main.__dict__
        self.builtins = {**vars(builtins), awaited_values.READY: awaited_values.awaitable}
        self.names["__builtins__"] = self.builtins
        self.names["__file__"] = interpreter.PROGRAM
        self.tools: dict[str, bool] = {}
        self.seeded = False
        self.runs = 0
        self.calls = 0
        self.source = ""
        self.depth = 0
        self.loop: GuestLoop | None = None
        self.task: asyncio.Task[Any] | None = None
        self.binding = ResultBinding.NONE

    @property
    def filename(self) -> str:
        return interpreter.FILE_NAME.format(self.runs)

    def start(self, request: dict[str, Any]) -> dict[str, Any]:
        self.runs += 1
        self.calls = self.calls_made = 0
        self.loop = self.task = None
        interpreter.begin(STDOUT, STDERR)
        interpreter.store_source(self.runs, request["code"])
        if not self.seeded:
            random.seed()  # From the host, which has a seed for each session.
            self.seeded = True
        self.source, self.depth = request["code"], request["depth"]
        context = checks.CheckContext(request["tools"], self.names, is_importable)
        body, last, self.binding = parse(self.source, self.filename, context)
        self._bind(request["tools"], request["inputs"])
        if not (is_async(body) or is_async(last)):
            return self.end(self._limited(body, last))
        self.loop = GuestLoop()
        asyncio.set_event_loop(self.loop)
        self.task = self.loop.begin(self._program(body, last))
        return self._pump()

    def resume(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self.loop is not None
        for number, reply in request["replies"]:
            call = self.loop.pending.pop(number, None)
            if call is None or call.future.done():
                continue
            if "error" in reply:
                call.future.set_exception(tool_error(reply["error"]))
            else:
                call.future.set_result(reply["value"])
        return self._pump()

    def check(self, request: dict[str, Any]) -> dict[str, Any]:
        """Parse, check and compile a source without executing it. Each check is independent."""
        STDOUT.begin()
        STDERR.begin()
        self.source = request["code"]
        with warnings.catch_warnings(action="always", category=SyntaxWarning):
            context = checks.CheckContext(request["tools"], (), may_become_importable)
            parse(self.source, self.filename, context)
        return {"value": None}

    def _bind(self, tools: dict[str, bool], inputs: dict[str, Any]) -> None:
        """Put tools and the last run's ``result`` into the builtins: a program may shadow them,
        and a ``result`` in the globals was assigned by this run."""
        if tools != self.tools:
            for name in self.tools:
                self.builtins.pop(name, None)
                if name in vars(builtins):
                    self.builtins[name] = vars(builtins)[name]
            for name, awaited in tools.items():
                self.builtins[name] = self._tool(name, awaited)
            self.tools = tools
        self.names.update(inputs)
        if "result" in self.names:
            self.builtins["result"] = self.names.pop("result")

    def _tool(self, name: str, awaited: bool) -> Callable[..., Any]:
        def awaited_call(*args: Any, **kwargs: Any) -> asyncio.Future[Any]:
            loop = self.loop
            if loop is None or not loop.is_running():
                raise RuntimeError(f"{name}() is awaited: write `await {name}(...)`")
            self.calls += 1
            self.calls_made += 1
            details = {"id": self.calls, "name": name, "args": args, "kwargs": kwargs}
            to_host_json(details)  # The program gets the error where it makes the call.
            future: asyncio.Future[Any] = loop.create_future()
            loop.pending[self.calls] = PendingCall(future, details)
            return future

        def synchronous_call(*args: Any, **kwargs: Any) -> Any:
            arguments = to_host_json({"args": args, "kwargs": kwargs})
            self.calls_made += 1
            return call_host(name, arguments)

        def discovering_call(*args: Any, **kwargs: Any) -> Any:
            value = call_host(name, to_host_json({"args": args, "kwargs": kwargs}))
            if name == discovery.POLICY:
                return discovery.policy(value, call_host(discovery.LIMITS, NO_ARGUMENTS))
            return value

        discovers = name in discovery.NAMES
        tool: Any = awaited_call if awaited else discovering_call if discovers else synchronous_call
        tool.__name__ = tool.__qualname__ = name
        return cast("Callable[..., Any]", tool)

    def _limited(self, *codes: Code | None) -> Any:
        """Run the code objects within the run's stack limit; return the value of the last one."""
        interpreter.set_depth(count_frames() + self.depth)
        value = None
        for code in codes:
            value = eval(code, self.names) if code else None
        return value

    async def _program(self, *codes: Code | None) -> Any:
        value = None
        for code in codes:
            value = self._limited(code)
            if is_async(code):
                value = await value
        return await value if asyncio.isfuture(value) else value

    def _pump(self) -> dict[str, Any]:
        """Run the event loop until the program ends or waits for the host."""
        loop, task = self.loop, self.task
        assert loop is not None
        assert task is not None
        interpreter.set_depth(count_frames() + self.depth + LOOP_FRAMES)
        if not task.done():
            loop.run_forever()
        interpreter.set_depth(_OWN_DEPTH)
        if task.done():
            self.loop = self.task = None
            return self.end(task.result())
        if not loop.pending:
            self.loop = self.task = None
            raise RuntimeError("the program awaits something that can never happen")
        waits = {"calls": loop.unreported_calls(), "outstanding": list(loop.pending)}
        return {"waits": {**waits, "timer_s": loop.timer_s}}

    def end(self, last: Any) -> dict[str, Any]:
        interpreter.set_depth(_OWN_DEPTH)
        return reply_with(self.binding, self.names, last, self.calls_made)


NO_ARGUMENTS = '{"args": [], "kwargs": {}}'
LOOP_FRAMES = 4
"""run_forever, _run_once, Handle._run and the first frame of the program."""


def call_host(name: str, arguments: str) -> Any:
    """Make a synchronous call; raise the error that the host replies with. The call may take long,
    so what was printed before it is sent first."""
    if STDOUT.buffered:
        STDOUT.flush()
    if STDERR.buffered:
        STDERR.flush()
    reply, _ = decode(wit_world.call_tool(name, arguments))
    if "error" in reply:
        raise tool_error(reply["error"])
    return reply["value"]


def is_importable(name: str) -> bool:
    """Whether the module is loaded, in the library or in the session's files."""
    top = name.partition(".")[0]
    if name in sys.modules or name in LIBRARY or f"{top}.{name}" in LIBRARY:
        return True
    try:
        return importlib.util.find_spec(top) is not None and top not in LIBRARY
    except (ImportError, ValueError):
        return False


def may_become_importable(name: str) -> bool:
    """``is_importable`` for a check, which runs without the session's files."""
    return is_importable(name) or refusals.absent_module(name) is None


def parse(
    source: str, filename: str, context: checks.CheckContext
) -> tuple[Code | None, Code | None, ResultBinding]:
    """Check and compile a program: its body, its last expression, and how it binds ``result``."""
    if "\0" in source:
        raise nul_character(source, filename)
    try:
        tree = ast.parse(source, filename)
    except (MemoryError, RecursionError) as error:
        if not str(error):
            raise
        raise too_complex(error, filename) from None
    if violation := checks.first_violation(tree, source, context):
        raise violation
    binding = binding_of(tree, source)
    async_runs.rewrite(tree, source)
    awaited_values.rewrite(tree, source, context.tools, context.names)
    last: ast.expr | None = None
    match tree.body:
        case [*statements, ast.Expr(value=last)]:
            tree.body = statements
        case _:
            pass
    try:
        body = compile(tree, filename, "exec", flags=_AWAIT) if tree.body else None
        value = compile(ast.Expression(last), filename, "eval", flags=_AWAIT) if last else None
    except SyntaxError as error:
        count_characters(error, source)
        raise
    except RecursionError as error:
        raise too_complex(error, filename) from None
    return body, value, binding


def to_host_json(value: Any) -> str:
    """Encode as JSON for the host; raise ``UnicodeEncodeError`` for lone surrogates."""
    text = encode(value)
    if "\\ud" in text:
        encode_plainly(value).encode()
    return text


def is_async(code: Code | None) -> bool:
    return code is not None and bool(code.co_flags & inspect.CO_COROUTINE)


def count_frames() -> int:
    """The caller's depth in the stack."""
    frame, depth = inspect.currentframe(), 0
    while frame := frame and frame.f_back:
        depth += 1
    return depth


class GuestApp:
    """The session of this instance, and the steps that the host requests."""

    def __init__(self) -> None:
        self.session = GuestSession()

    def serve(self, text: str) -> str:
        """Execute one step. An exception of the program becomes an error in the reply."""
        try:
            reply = encode(self._step(decode(text)[0]))
        except BaseException as error:
            reply = self._reply_to(error)
        STDOUT.flush()
        STDERR.flush()
        if TREE.written and self.session.task is None:
            file_steps.send_written()
        return reply

    def _reply_to(self, error: BaseException) -> str:
        """Reply to an uncaught exception with an error, and to ``sys.exit()`` with a result."""
        session = self.session
        interpreter.set_depth(_OWN_DEPTH)
        session.loop = session.task = None
        if isinstance(error, SystemExit) and (error.code is None or error.code == 0):
            try:
                return encode(session.end(None))
            except BaseException as problem:
                error = problem
        return encode({"error": describe(error, session.source, session.filename)})

    def _step(self, request: dict[str, Any]) -> dict[str, Any]:
        match request["step"]:
            case "run":
                return self.session.start(request)
            case "resume":
                return self.session.resume(request)
            case "files":
                reply = file_steps.serve(request)
                TREE.written = {}  # By no run.
                return reply
            case _:
                return self.session.check(request)


APP = GuestApp()
HOLES: list[bytes] = []
"""See ``fill_memory_holes``."""


class WitWorld(wit_world.WitWorld):
    """The component's exports."""

    def serve(self, request: str) -> str:
        return APP.serve(request)


def prepare() -> None:
    """Prepare the memory that every session begins with; runs once, when the guest is built."""
    standard_modules.load()
    clock.install()
    interpreter.install()
    async_runs.install()
    awaited_values.install()
    databases.install()
    ZONES.install()
    warm_up()
    APP.session = GuestSession()
    sys.modules["__main__"] = APP.session.main
    gc.collect()
    fill_memory_holes()
    gc.freeze()


def fill_memory_holes() -> None:
    """Fill the gaps between loaded objects, so that a session allocates in few pages: a snapshot
    stores each page that the session has written to. A row as long as a page is not a gap."""
    for size in range(2, 480, 8):  # Shorter bytes objects are shared.
        row: list[bytes] = []
        room = sys.getsizeof(bytes(size))
        for _ in range(_HOLES_MAX):
            block = bytes(size)
            step = id(block) - id(row[-1]) if row else room
            if not room <= step < room + 16:
                HOLES.extend(row)
                row = []
            row.append(block)
            if len(row) * step > _PAGE_BYTES:
                break


_HOLES_MAX, _PAGE_BYTES = 4000, 4096 - 600
_ROUNDS = 4
"""After that many rounds the interpreter has specialized the code that runs often. Otherwise each
session would specialize it, and its snapshot would store the pages of that code."""
_WARM = (
    "1 + 1",
    "x = 1",
    "x = 1\n1 / 0",
    "x = = 1",
    "import socket",
    "import json, math, os, re\nfrom collections import Counter",
    "f'{1:>3}'\nresult = {'a': [1.5]}",
    "def f(a, b=2): return [a + n for n in range(b)]\nprint(f(1))\n[f(2), {'a': (1, None)}]",
    "class A:\n    def __init__(self): self.x = 1\n    def f(self): return self.x\nA().f()",
)
_WARM_AWAITED = """
import asyncio
async def f(): return await asyncio.sleep(0, 1)
[*(await asyncio.gather(f(), tool(1), tool(n=2)))]
"""


def warm_up() -> None:
    """Execute every kind of step on temporary sessions."""
    tools = {"tool": True, "other": False}
    replies = [[1, {"value": 1}], [2, {"error": {"code": "RUNTIME_ERROR", "message": "no"}}]]
    real = output.emit, wit_world.call_tool  # The build has no host functions.
    output.emit, wit_world.call_tool = lambda *_: True, lambda *_: '{"value": 1}'
    for _ in range(_ROUNDS):
        APP.session = GuestSession()
        for code in _WARM:
            APP.serve(_request(code, {}))
        APP.serve(_request("other(1)", tools))
        APP.serve(_request(_WARM_AWAITED, tools))
        APP.serve(json.dumps({"step": "resume", "replies": replies}))
    output.emit, wit_world.call_tool = real


def _request(code: str, tools: dict[str, bool]) -> str:
    request = {"step": "run", "code": code, "inputs": {}, "tools": tools, "depth": 256}
    return json.dumps(request)
