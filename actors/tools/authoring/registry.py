"""The registry of the tools that a process offers, and the loading of ``module:object``."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent import futures
from contextvars import copy_context
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from rookery.actors.protection.scrubber import Scrubber, scrubber_of
from rookery.actors.tools.authoring.resources import RegisteredResource, resource_of
from rookery.actors.tools.validation.capability_checks import CapabilityChecks
from rookery.schemas.calls import Capability, is_python_identifier
from rookery.schemas.errors import Refused

__all__ = [
    "AGENT_ATTRIBUTE",
    "HOOK_ATTRIBUTE",
    "TOOL_ATTRIBUTE",
    "RegisteredTool",
    "SyncToolFn",
    "ToolCallContext",
    "ToolCredential",
    "ToolError",
    "ToolFn",
    "ToolFuture",
    "ToolRegistry",
    "ToolResult",
    "check_tool_name",
    "tool_of",
]

# --- credential -----------------------------------------------------------------------------------

# The credential that a function gets for one call.
#
# No program sees it, and no fact, log or error has it: what the function returns or raises is
# scrubbed of it. A function that prints it, or sends it elsewhere, gives it away.


class ToolCredential:
    """A fresh credential of the tool's binding."""

    def __init__(self, value: str, scheme: str = "Bearer", generation: int = 0) -> None:
        self.value, self.scheme, self.generation = value, scheme, generation
        self.is_rejected = False
        """Whether the function has called ``reject``."""

    def header(self, name: str = "Authorization") -> dict[str, str]:
        """For a request: in ``Authorization`` it is preceded by its scheme."""
        is_plain = name.lower() != "authorization" or not self.scheme
        return {name: self.value if is_plain else f"{self.scheme} {self.value}"}

    def query(self, name: str) -> dict[str, str]:
        """For a URL, as a parameter."""
        return {name: self.value}

    def environment(self, name: str) -> dict[str, str]:
        """For a child process, beside the variables it needs; children inherit nothing of it."""
        return {name: self.value}

    def reject(self) -> None:
        """Report that the service refused it, as with status 401: the call fails, whatever the
        function returns, and the credential is refreshed although its time is not over."""
        self.is_rejected = True

    @property
    def scrubber(self) -> Scrubber:
        return scrubber_of(self.value)

    def __repr__(self) -> str:
        return "<ToolCredential>"

    __str__ = __repr__


# --- registry -------------------------------------------------------------------------------------

# The contract's capability with its handler, and the registry of the tools a process offers.
#
# A handler takes a ``ToolCallContext`` and returns a JSON value or raises ``ToolError``. It gets
# the arguments as the program wrote them; the node checks them, requests approvals, and enforces
# deadlines before it calls the handler.


TOOL_ATTRIBUTE: Final = "__rookery_tool__"
"""The attribute of a decorated function that holds its tool."""
AGENT_ATTRIBUTE: Final = "__rookery_agent__"
"""The attribute of a decorated function that holds its agent."""
HOOK_ATTRIBUTE: Final = "__rookery_hook__"
"""The attribute that holds the hook of a decorated function; a hook has itself there."""


def _never() -> bool:
    return False


class ToolCallContext(msgspec.Struct, frozen=True):
    """The context of a call: what a handler needs to act once and in time."""

    name: str
    args: list[Any]
    kwargs: dict[str, Any]
    idempotency_key: str = ""
    """The same for every attempt of one call; a service that stores it acts once."""
    session_id: str = ""
    run_id: str = ""
    call_id: str = ""
    """The operation id in the facts."""
    attempt: int = 1
    """The number of this attempt. Earlier attempts may have acted."""
    deadline_ms: int | None = None
    """Unix time after which the node discards the result."""
    traceparent: str | None = None
    credential: ToolCredential | None = None
    """Of the tool's binding; ``None`` if it has none."""
    schema_digest: str = ""
    """The schema of the tool that the call was recorded, and approved, for."""
    cancelled: Callable[[], bool] = _never
    """Whether the result is no longer needed. The task of an asynchronous handler is cancelled as
    well; a synchronous one cannot be stopped and should check this between its steps."""


class ToolError(Exception):
    """The tool's own failure. The program sees ``code`` and ``message`` and may catch it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.code, self.message = code, message

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


ToolResult: TypeAlias = Any
"""A JSON value. A failure is raised, not returned."""

ToolFuture: TypeAlias = Awaitable[ToolResult]
SyncToolFn: TypeAlias = Callable[[ToolCallContext], ToolResult]
ToolFn: TypeAlias = Callable[[ToolCallContext], ToolFuture]


class RegisteredTool:
    """A capability and its handler. ``sync`` and ``asynchronous`` make one, and refuse invalid
    schemas and limits."""

    __slots__ = ("_handler", "async_mode", "capability", "checks", "quick")

    def __init__(
        self,
        capability: Capability,
        handler: SyncToolFn | ToolFn,
        *,
        async_mode: bool,
        quick: bool = False,
    ) -> None:
        self.capability, self.quick = capability, quick
        """``quick``: the handler never blocks, so a host calls it on its own event loop."""
        self.async_mode = async_mode
        """Whether the handler is a coroutine function, and a program awaits the tool."""
        self.checks = CapabilityChecks(capability)
        self._handler = handler

    @property
    def is_inline(self) -> bool:
        """Whether a host calls the handler on its own event loop and waits for nothing."""
        return self.quick and not self.async_mode

    @classmethod
    def sync(cls, capability: Capability, handler: SyncToolFn) -> RegisteredTool:
        """A handler that may block."""
        return cls(capability, handler, async_mode=False)

    @classmethod
    def asynchronous(cls, capability: Capability, handler: ToolFn) -> RegisteredTool:
        """A handler that must not block: it runs on the caller's event loop."""
        return cls(capability, handler, async_mode=True)

    def call(self, ctx: ToolCallContext) -> ToolFuture:
        """Call the handler. A synchronous one runs on a thread of the running loop's default
        executor."""
        return self.call_on(None, ctx)

    async def call_on(self, threads: futures.Executor | None, ctx: ToolCallContext) -> ToolResult:
        """Call the handler; a synchronous one runs on one of ``threads``, so that it never blocks
        the loop.

        Cancelling the returned awaitable stops an asynchronous handler. A synchronous one occupies
        its thread until it returns.
        """
        if self.async_mode:
            try:
                return await self._handler(ctx)
            except SystemExit as error:
                raise RuntimeError("the tool raised SystemExit") from error
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(threads, copy_context().run, self.act, ctx)

    def act(self, ctx: ToolCallContext) -> ToolResult:
        """Call a synchronous handler on this thread. ``SystemExit`` and similar exceptions become a
        ``RuntimeError``: in a future they would end the loop of the waiting task or look like a
        cancellation."""
        try:
            return self._handler(ctx)
        except _NOT_A_FAILURE as error:
            raise RuntimeError(f"the tool raised {type(error).__name__}") from error

    def __repr__(self) -> str:
        return f"RegisteredTool({self.capability!r}, async_mode={self.async_mode})"


_NOT_A_FAILURE: Final = (
    StopIteration,
    SystemExit,
    KeyboardInterrupt,
    asyncio.CancelledError,
    futures.CancelledError,
)


def tool_of(found: object) -> RegisteredTool:
    """The tool of an object: the object itself, or the tool of a decorated function."""
    tool = found if isinstance(found, RegisteredTool) else getattr(found, TOOL_ATTRIBUTE, None)
    if not isinstance(tool, RegisteredTool):
        name = getattr(found, "__name__", type(found).__name__)
        raise Refused(
            "INVALID_ARGUMENT", f"{name} is no tool", hint="decorate the function with @tool"
        )
    return tool


def hook_of(found: object) -> object | None:
    """The hook of an object; ``None`` if it has none."""
    return getattr(found, HOOK_ATTRIBUTE, None)


def agent_of(found: object) -> Any:
    """The agent of an object, made by ``actors/tools/agents``; ``None`` if it has none."""
    return getattr(found, AGENT_ATTRIBUTE, None)


def check_tool_name(name: str) -> None:
    if not is_python_identifier(name):
        raise Refused(
            "INVALID_TOOL_NAME",
            f"capability name {name[:80]!r} is not an identifier",
            hint="use ASCII letters, digits and '_', and no digit first",
        )


class HookHolder(Protocol):
    """A hook of a node, made by ``actors/hooks``."""

    @property
    def __rookery_hook__(self) -> object: ...


class ToolRegistry:
    """Tools by name. A later tool replaces an earlier one of the same name."""

    def __init__(self) -> None:
        self._tools: dict[str, RegisteredTool] = {}
        self.hooks: list[Any] = []
        """What decorated functions hold for ``actors/hooks``, in order."""
        self.resources: dict[str, RegisteredResource] = {}
        """By scheme."""
        self.agents: dict[str, Any] = {}
        """By name; each a ``RegisteredAgent``, or its function."""

    @classmethod
    def of(
        cls, *tools: RegisteredTool | Callable[..., Any] | HookHolder | RegisteredResource
    ) -> ToolRegistry:
        """A registry of hooks, of agents and tools with different names, and of resources with
        different schemes."""
        registry = cls()
        registry.register_agents(tools)
        registry.hooks += [hook for one in tools if (hook := hook_of(one)) is not None]
        for one in tools:
            if (resource := resource_of(one)) is not None:
                registry.register_resource(resource)
        others = (
            one
            for one in tools
            if hook_of(one) is None and resource_of(one) is None and agent_of(one) is None
        )
        for tool in map(tool_of, others):
            if registry.contains(tool.capability.name):
                raise Refused("INVALID_TOOL_NAME", f"two tools are called {tool.capability.name}")
            registry.register(tool)
        return registry

    @classmethod
    def load(cls, place: str) -> ToolRegistry:
        """The registry of ``module:object``; a refusal says what is missing."""
        module_name, _, path = place.partition(":")
        if not (module_name and path):
            raise _refused(place, "is not MODULE:OBJECT", hint="such as myapp.tools:TOOLS")
        try:
            found: Any = reduce(getattr, path.split("."), _module(place, module_name))
        except AttributeError as error:
            raise _refused(place, f"names nothing: {error}") from None
        if isinstance(found, ToolRegistry):
            return found
        try:
            return cls.of(*_flatten(found if isinstance(found, list | tuple) else [found]))
        except Refused as refusal:
            raise _with_reference(place, refusal) from None

    def register(self, tool: RegisteredTool | Callable[..., Any]) -> None:
        """Add a tool under its capability's name; refuse a name that programs cannot call."""
        found = tool_of(tool)
        check_tool_name(found.capability.name)
        self._tools[found.capability.name] = found

    def register_resource(self, resource: RegisteredResource) -> None:
        """Add a resource; refuse a second one of its scheme."""
        scheme = resource.scheme.as_str()
        if scheme in self.resources:
            raise Refused("INVALID_ARGUMENT", f"two resources have the scheme {scheme}")
        self.resources[scheme] = resource

    def register_agents(self, found: Iterable[object]) -> None:
        """Add the agents among these; refuse two of one name."""
        for agent in filter(None, map(agent_of, found)):
            if agent.name in self.agents:
                raise Refused("INVALID_TOOL_NAME", f"two agents are called {agent.name}")
            self.agents[agent.name] = agent

    def get(self, name: str) -> RegisteredTool | None:
        return self._tools.get(name)

    def contains(self, name: str) -> bool:
        return name in self._tools

    def names(self) -> list[str]:
        """Sorted."""
        return sorted(self._tools)

    def capabilities(self) -> list[Capability]:
        """Sorted by name."""
        return [tool.capability for tool in self]

    def __iter__(self) -> Iterator[RegisteredTool]:
        return (self._tools[name] for name in self.names())

    def __len__(self) -> int:
        return len(self._tools)


# --- loader ---------------------------------------------------------------------------------------

# Loads the tools of ``module:object``, the form of the command line.
#
# The module is imported from the current directory. The object is a registry, a tool, or a list of
# tools.


def _module(place: str, module_name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module_name)
    except Refused as refusal:
        raise _with_reference(place, refusal) from refusal
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and _is_part(error.name, module_name):
            hint = f"start where {module_name.partition('.')[0]} is, or install it"
            raise _refused(place, f"names no module: {error}", hint=hint) from None
        why = f"cannot be imported: {type(error).__name__}: {error}"
        raise _refused(place, why, hint=f"python -c 'import {module_name}'") from error


def _is_part(missing: str | None, module_name: str) -> bool:
    return missing is not None and f"{module_name}.".startswith(f"{missing}.")


def _flatten(tools: Iterable[Any]) -> Iterator[Any]:
    """Tools, hooks, resources and agents, one by one."""
    for tool in tools:
        if isinstance(tool, ToolRegistry):
            yield from (*tool, *tool.hooks, *tool.resources.values(), *tool.agents.values())
        elif (agent := agent_of(tool)) is not None:
            yield agent
        elif (hook := hook_of(tool)) is not None:
            yield hook
        else:
            yield resource_of(tool) or tool_of(tool)


def _refused(place: str, why: str, *, hint: str = "") -> Refused:
    return Refused("INVALID_ARGUMENT", f"{place[:200]!r} {why}", hint=hint)


def _with_reference(place: str, refusal: Refused) -> Refused:
    return Refused(refusal.code, f"{place[:200]!r}: {refusal.message}", hint=refusal.hint)
