"""The program inside the guest: one namespace a session, one request at a time.

``serve`` starts a run, resumes a waiting one or only checks a source. The reply says how the step
ended: a value, an error, or the calls the run waits for. Limits on calls, time, memory and output
are the host's; the depth of the stack is Python's own.
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
from guest import checks, clock, discovery, output, promised, refusals
from guest.faults import (
    count_characters,
    describe,
    nul_character,
    too_complex,
    tool_error,
)
from guest.loop import Loop, PendingCall
from guest.output import STDERR, STDOUT
from guest.results import Claim, claim_of, reply_with
from guest.system import async_runs, databases, interpreter
from guest.system.library import LIBRARY
from guest.system.zones import ZONES

__all__ = ["WitWorld", "prepare"]

_AWAIT = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
_OWN_DEPTH = 1000
"""Frames this program may use between steps, before and after the limited part."""

Code = types.CodeType
encode = json.JSONEncoder(allow_nan=False).encode
encode_plainly = json.JSONEncoder(allow_nan=False, ensure_ascii=False).encode
decode = json.JSONDecoder().raw_decode


class Session:
    """Everything that lives from run to run."""

    def __init__(self) -> None:
        self.main = types.ModuleType("__main__")
        self.names = self.main.__dict__
        self.builtins = dict(vars(builtins))
        self.names["__builtins__"] = self.builtins
        self.names["__file__"] = interpreter.PROGRAM
        self.tools: dict[str, bool] = {}
        self.seeded = False
        self.runs = 0
        self.calls = 0
        self.source = ""
        self.depth = 0
        self.loop: Loop | None = None
        self.task: asyncio.Task[Any] | None = None
        self.claim = Claim.NONE

    @property
    def filename(self) -> str:
        return interpreter.FILE_NAME.format(self.runs)

    def start(self, request: dict[str, Any]) -> dict[str, Any]:
        self.runs += 1
        self.calls = self.calls_made = 0
        self.loop = self.task = None
        interpreter.begin(STDOUT, STDERR)
        interpreter.remember(self.runs, request["code"])
        if not self.seeded:
            random.seed()  # From the host's randomness, which is the session's own.
            self.seeded = True
        self.source, self.depth = request["code"], request["depth"]
        around = checks.Surroundings(request["tools"], self.names, is_importable)
        body, last, self.claim = parse(self.source, self.filename, around)
        self._bind(request["tools"], request["inputs"])
        if not (is_async(body) or is_async(last)):
            return self.end(self._limited(body, last))
        self.loop = Loop()
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
        """Parse, check and compile; execute nothing. What was checked before does not matter."""
        STDOUT.begin()
        STDERR.begin()
        self.source = request["code"]
        with warnings.catch_warnings(action="always", category=SyntaxWarning):
            around = checks.Surroundings(request["tools"], (), may_be_importable)
            parse(self.source, self.filename, around)
        return {"value": None}

    def _bind(self, tools: dict[str, bool], inputs: dict[str, Any]) -> None:
        """Tools and the last run's ``result`` stand behind the globals: a program may shadow
        them, and ``result`` among the globals is one this run assigned."""
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
        def called_later(*args: Any, **kwargs: Any) -> asyncio.Future[Any]:
            loop = self.loop
            if loop is None or not loop.is_running():
                raise RuntimeError(f"{name}() must be awaited in a program with top-level await")
            self.calls += 1
            self.calls_made += 1
            details = {"id": self.calls, "name": name, "args": args, "kwargs": kwargs}
            written(details)  # Refused here, where the program can see it.
            future: asyncio.Future[Any] = loop.create_future()
            loop.pending[self.calls] = PendingCall(future, details)
            return future

        def called_now(*args: Any, **kwargs: Any) -> Any:
            arguments = written({"args": args, "kwargs": kwargs})
            self.calls_made += name not in discovery.NAMES
            value = asked(name, arguments)
            return (
                discovery.policy(value, asked(discovery.LIMITS, NO_ARGUMENTS))
                if name == discovery.POLICY
                else value
            )

        tool: Any = called_later if awaited else called_now
        tool.__name__ = tool.__qualname__ = name
        return cast("Callable[..., Any]", tool)

    def _limited(self, *codes: Code | None) -> Any:
        """The value of the last code object, run with the stack the program is given."""
        interpreter.set_depth(frames() + self.depth)
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
        return value

    def _pump(self) -> dict[str, Any]:
        """Run the event loop until the program ends or waits for the host."""
        loop, task = self.loop, self.task
        assert loop is not None
        assert task is not None
        interpreter.set_depth(frames() + self.depth + LOOP_FRAMES)
        if not task.done():
            loop.run_forever()
        interpreter.set_depth(_OWN_DEPTH)
        if task.done():
            self.loop = self.task = None
            return self.end(task.result())
        if not loop.pending:
            self.loop = self.task = None
            raise RuntimeError("the program awaits something that can never happen")
        waits = {"calls": loop.untold(), "outstanding": list(loop.pending)}
        return {"waits": {**waits, "timer_s": loop.timer_s}}

    def end(self, last: Any) -> dict[str, Any]:
        interpreter.set_depth(_OWN_DEPTH)
        return reply_with(self.claim, self.names, last, self.calls_made)


NO_ARGUMENTS = '{"args": [], "kwargs": {}}'
LOOP_FRAMES = 4
"""run_forever, _run_once, Handle._run and the program's own first frame."""


def asked(name: str, arguments: str) -> Any:
    """What the host answers to a synchronous call."""
    reply, _ = decode(wit_world.call_tool(name, arguments))
    if "error" in reply:
        raise tool_error(reply["error"])
    return reply["value"]


def is_importable(name: str) -> bool:
    """Whether a program finds this module: in the session's files, in the library, or loaded."""
    top = name.partition(".")[0]
    if name in sys.modules or name in LIBRARY or f"{top}.{name}" in LIBRARY:
        return True
    try:
        return importlib.util.find_spec(top) is not None and top not in LIBRARY
    except (ImportError, ValueError):
        return False


def may_be_importable(name: str) -> bool:
    """The same for a check, which sees no session's files."""
    return is_importable(name) or refusals.absent_module(name) is None


def parse(
    source: str, filename: str, around: checks.Surroundings
) -> tuple[Code | None, Code | None, Claim]:
    """The checked program as code: its body, its last expression apart, and what it says of
    ``result``."""
    if "\0" in source:
        raise nul_character(source, filename)
    try:
        tree = ast.parse(source, filename)
    except (MemoryError, RecursionError) as error:
        if not str(error):
            raise
        raise too_complex(error, filename) from None
    if violation := checks.first_violation(tree, source, around):
        raise violation
    claim = claim_of(tree, source)
    async_runs.rewritten(tree, source)
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
    return body, value, claim


def written(value: Any) -> str:
    """As JSON the host can read: Python writes halves of characters, too."""
    text = encode(value)
    if "\\ud" in text:
        encode_plainly(value).encode()
    return text


def is_async(code: Code | None) -> bool:
    return code is not None and bool(code.co_flags & inspect.CO_COROUTINE)


def frames() -> int:
    """How deep the caller stands."""
    frame, depth = inspect.currentframe(), 0
    while frame := frame and frame.f_back:
        depth += 1
    return depth


class Guest:
    """The present session, and the steps it can be asked for."""

    def __init__(self) -> None:
        self.session = Session()

    def serve(self, text: str) -> str:
        """One step. Whatever the program raised is described, never raised."""
        try:
            reply = encode(self._step(decode(text)[0]))
        except BaseException as error:
            reply = self._reply_to(error)
        STDOUT.flush()
        STDERR.flush()
        return reply

    def _reply_to(self, error: BaseException) -> str:
        """What a program leaves uncaught ends it; ``sys.exit()`` ends it well."""
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
            case _:
                return self.session.check(request)


GUEST = Guest()
HOLES: list[bytes] = []
"""See ``fill_holes``."""


class WitWorld(wit_world.WitWorld):
    """The component's exports."""

    def serve(self, request: str) -> str:
        return GUEST.serve(request)


def prepare() -> None:
    """Runs once, when the guest is built: what is warm here is warm in every session."""
    promised.load()
    clock.install()
    interpreter.install()
    async_runs.install()
    databases.install()
    ZONES.install()
    warm_up()
    GUEST.session = Session()
    sys.modules["__main__"] = GUEST.session.main
    gc.collect()
    fill_holes()
    gc.freeze()


def fill_holes() -> None:
    """Use up the free places between what is loaded, so that what a session makes lies together:
    its snapshot holds every page it has written to. A row as long as a page is no hole."""
    for size in range(2, 480, 8):  # Smaller ones are always the same.
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
"""By then the interpreter has made what it makes of code that runs again and again. What it would
write into that code later would be pages of every session's own."""
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
    """Exercise every path on sessions that are thrown away."""
    tools = {"tool": True, "other": False}
    replies = [[1, {"value": 1}], [2, {"error": {"code": "RUNTIME_ERROR", "message": "no"}}]]
    real = output.emit, wit_world.call_tool  # Nobody answers where the guest is built.
    output.emit, wit_world.call_tool = lambda *_: True, lambda *_: '{"value": 1}'
    for _ in range(_ROUNDS):
        GUEST.session = Session()
        for code in _WARM:
            GUEST.serve(_request(code, {}))
        GUEST.serve(_request("other(1)", tools))
        GUEST.serve(_request(_WARM_AWAITED, tools))
        GUEST.serve(json.dumps({"step": "resume", "replies": replies}))
    output.emit, wit_world.call_tool = real


def _request(code: str, tools: dict[str, bool]) -> str:
    request = {"step": "run", "code": code, "inputs": {}, "tools": tools, "depth": 256}
    return json.dumps(request)
