"""``@agent``: a function that writes the instructions of a model as an agent, by its signature.

::

    @agent(model="careful", tools=["search"], output=Report, limits={"turns": 30, "cost": 0.50})
    def researcher(topic: str, depth: int = 2) -> str:
        '''Looks a topic up and writes a cited report.'''
        return f"You are a careful researcher. Topic: {topic}. Depth: {depth}."

The function is called once for each run, when the run starts, and its text is on record from then
on. It must return at once: it has nothing to wait for.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, TypedDict, TypeVar, Unpack, overload

import msgspec
from msgspec import UNSET, Meta

from rookery.actors.tools.authoring.decorator import ToolSignature, type_schema
from rookery.actors.tools.authoring.registry import (
    AGENT_ATTRIBUTE,
    ToolCallContext,
    ToolError,
    check_tool_name,
)
from rookery.actors.tools.validation.capability_checks import CapabilityChecks
from rookery.schemas.agent_tools import DETACH, AgentView
from rookery.schemas.agents import AgentLimits, ModelSettings, ToolMode
from rookery.schemas.calls import ApprovalMode, ApprovalPolicy, Capability
from rookery.schemas.errors import Refused

__all__ = ["AgentOptions", "RegisteredAgent", "agent"]

SHARE: Final = 0.25
INSTRUCTIONS_CHARS_MAX: Final = 100_000
_Share = Annotated[float, Meta(gt=0, le=1)]
F = TypeVar("F", bound=Callable[..., str])


class AgentOptions(TypedDict, total=False):
    """The options of an agent, beyond type hints and docstring."""

    name: str
    """Defaults to the function's name."""
    model: str | Sequence[str]
    """Alias in the node's configuration, or several: a route. Defaults to the node's model."""
    tools: Sequence[str]
    """All that its runs may call; other agents, too. Defaults to everything but agents."""
    tool_mode: ToolMode | str
    """``"tools"``, ``"code"`` or ``"both"``."""
    output: Any
    """A type, or a JSON Schema, of the result. Defaults to the last text."""
    settings: ModelSettings | Mapping[str, Any]
    limits: AgentLimits | Mapping[str, float]
    """``turns``, ``tokens``, ``cost`` in dollars, ``tool_calls``, ``agent_wall_ms``, ``repeats``,
    ``depth`` and ``children``."""
    share: float
    """How much of what its caller has left of a budget a call of it reserves, 0.25."""
    approval_policy: ApprovalPolicy | str | dict[str, Any]
    """Whether a call of the agent by another run needs an approver, as for tools."""


class RegisteredAgent:
    """An agent, and the function that writes its instructions."""

    __slots__ = ("_checks", "_function", "_signature", "approval_policy", "view")

    def __init__(
        self, function: Callable[..., str], view: AgentView, approval_policy: ApprovalPolicy
    ) -> None:
        self._function, self._signature = function, ToolSignature(function, view.name)
        if DETACH in self._signature.input_schema["properties"]:
            wrong = f"{DETACH} of {view.name}: callers say by it whether they wait"
            raise Refused("INVALID_ARGUMENT", wrong, hint="another name of the parameter")
        self.view = msgspec.structs.replace(view, input_schema=self._signature.input_schema)
        self.approval_policy = approval_policy
        self._checks = CapabilityChecks(self.capability)

    @property
    def name(self) -> str:
        return self.view.name

    @property
    def __rookery_agent__(self) -> RegisteredAgent:
        """As its function has it."""
        return self

    @property
    def capability(self) -> Capability:
        """The agent as a tool; what its calls may change depends on its tools."""
        view = self.view
        return Capability(
            name=view.name,
            description=view.description,
            input_schema=view.input_schema,
            output_schema={} if view.output_schema is UNSET else view.output_schema,
            approval_policy=self.approval_policy,
            permissions=(),
        )

    def check(self, inputs: Mapping[str, Any]) -> None:
        """Raise ``Refused`` for arguments that the agent does not take."""
        self._checks.check_arguments((), inputs)

    def instructions(self, inputs: Mapping[str, Any]) -> str:
        """The instructions of a run with these arguments."""
        try:
            args, kwargs = self._signature.bind(ToolCallContext(self.name, [], dict(inputs)))
            text: Any = self._function(*args, **kwargs)
        except ToolError as error:
            raise Refused(error.code, error.message) from None
        except Exception as error:
            why = f"{type(error).__name__}: {error}"[:500]
            raise Refused("AGENT_FAILED", f"{self.name} wrote no instructions: {why}") from None
        if not isinstance(text, str) or len(text) > INSTRUCTIONS_CHARS_MAX or "\0" in text:
            wrong = f"{self.name} wrote instructions that are no text of 100,000 characters at most"
            raise Refused("AGENT_FAILED", wrong)
        return text


@overload
def agent(function: F, /) -> F: ...


@overload
def agent(**options: Unpack[AgentOptions]) -> Callable[[F], F]: ...


def agent(function: F | None = None, /, **options: Unpack[AgentOptions]) -> F | Callable[[F], F]:
    """Make an agent of a function that returns instructions; refuse one that cannot be an agent."""

    def decorate(function: F) -> F:
        setattr(function, AGENT_ATTRIBUTE, _register(function, options))
        return function

    return decorate if function is None else decorate(function)


def _register(function: Callable[..., str], options: Mapping[str, Any]) -> RegisteredAgent:
    if not inspect.isfunction(function) or inspect.iscoroutinefunction(function):
        raise Refused(
            "INVALID_ARGUMENT",
            "@agent is for functions without async",
            hint="def researcher(topic: str) -> str: ...",
        )
    if unknown := sorted(options.keys() - AgentOptions.__annotations__.keys()):
        known = ", ".join(AgentOptions.__annotations__)
        raise Refused(
            "INVALID_ARGUMENT", f"@agent has no option {unknown[0]}", hint=f"there are {known}"
        )
    name = _option("it", options, "name", function.__name__, str)
    check_tool_name(name)
    view = AgentView(
        name=name,
        description=inspect.getdoc(function) or "",
        model=_route(name, options),
        tools=_option(name, options, "tools", UNSET, tuple[str, ...]),
        tool_mode=_option(name, options, "tool_mode", ToolMode.TOOLS, ToolMode),
        settings=_option(name, options, "settings", ModelSettings(), ModelSettings),
        output_schema=_output_schema(name, options),
        limits=_limits(name, options),
        share=_option(name, options, "share", SHARE, _Share),
    )
    policy = _option(name, options, "approval_policy", ApprovalMode.NONE, ApprovalPolicy)
    return RegisteredAgent(function, view, policy)


def _route(name: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    given = options.get("model", ())
    route = {"model": [given] if isinstance(given, str) else given}
    found: tuple[str, ...] = _option(name, route, "model", (), tuple[str, ...])
    return found


def _output_schema(name: str, options: Mapping[str, Any]) -> Any:
    if "output" not in options:
        return UNSET
    given = options["output"]
    try:
        found = given if isinstance(given, dict) else type_schema(given)
    except TypeError as error:
        raise Refused("INVALID_ARGUMENT", f"output of {name} has no JSON Schema: {error}") from None
    CapabilityChecks(Capability(name=name, description="", output_schema=found))
    return found


def _limits(name: str, options: Mapping[str, Any]) -> AgentLimits:
    given = options.get("limits", AgentLimits())
    if isinstance(given, Mapping) and "cost" in given:
        given = {one: value for one, value in given.items() if one != "cost"}
        given["cost_micro_usd"] = round(float(options["limits"]["cost"]) * 1_000_000)
    found: AgentLimits = _option(name, {"limits": given}, "limits", AgentLimits(), AgentLimits)
    return found


def _option(name: str, options: Mapping[str, Any], option: str, default: Any, kind: Any) -> Any:
    if option not in options:
        return default
    try:
        return msgspec.convert(msgspec.to_builtins(options[option]), kind)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise Refused("INVALID_ARGUMENT", f"{option} of {name}: {error}") from None
