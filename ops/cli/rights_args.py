"""The options of the command line that name rights, and the rights made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number
from msgspec import UNSET, UnsetType

from rookery.bus.clock import SystemClock
from rookery.ops.cli.options import parse_duration_ms
from rookery.ops.cli.output import clock_time
from rookery.schemas.errors import Refused
from rookery.schemas.protection.rights import Rights, ToolRight
from rookery.schemas.run import SideEffect

__all__ = ["NO_RIGHTS_OPTIONS", "RightsOptions", "parse_allowance", "right_words"]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RightsOptions:
    """What programs may call. Without these options nothing is restricted."""

    tool: Annotated[
        list[str] | None, Parameter(help="A tool it may call; no others.", negative="")
    ] = None
    surface: Annotated[
        list[str] | None,
        Parameter(help="A surface whose tools it may call; local: the node's own.", negative=""),
    ] = None
    allow: Annotated[
        list[str] | None,
        Parameter(
            help="A tool it may call under a condition: 'pay: args.amount <= 50'.", negative=""
        ),
    ] = None
    side_effects: Annotated[
        str | None,
        Parameter(help=f"The worst side effect of a tool it may call: {', '.join(SideEffect)}."),
    ] = None
    calls: Annotated[
        int | None, Parameter(help="Largest number of calls of a run.", validator=Number(gte=0))
    ] = None
    session_calls: Annotated[
        int | None,
        Parameter(help="Largest number of calls of all runs together.", validator=Number(gte=0)),
    ] = None
    expires_in: Annotated[
        str | None, Parameter(help="No calls after this time: 30s, 10m, 2h or 1d.")
    ] = None

    def rights(self) -> Rights | UnsetType:
        """The rights of these options; unset if there is none."""
        named = [self.tool, self.surface, self.allow]
        tools = (
            *(ToolRight(tool=name) for name in self.tool or ()),
            *(ToolRight(surface=name) for name in self.surface or ()),
            *(parse_allowance(text) for text in self.allow or ()),
        )
        until_ms: int | UnsetType = UNSET
        if self.expires_in is not None:
            until_ms = SystemClock().now_ms() + parse_duration_ms(self.expires_in)
        rights = Rights(
            tools=UNSET if named == [None, None, None] else tools,
            side_effect=UNSET if self.side_effects is None else find_side_effect(self.side_effects),
            calls=UNSET if self.calls is None else self.calls,
            session_calls=UNSET if self.session_calls is None else self.session_calls,
            until_ms=until_ms,
        )
        return UNSET if rights == Rights() else rights


NO_RIGHTS_OPTIONS = RightsOptions()


def find_side_effect(name: str) -> SideEffect:
    """The side effect of this name, as tools and lists spell it."""
    try:
        return SideEffect(name.strip())
    except ValueError:
        text, hint = (
            f"--side-effects: no side effect {name[:80]!r}",
            f"one of {', '.join(SideEffect)}",
        )
        raise Refused("INVALID_ARGUMENT", text, hint=hint) from None


def parse_allowance(text: str) -> ToolRight:
    """``pay: args.amount <= 50``."""
    tool, colon, condition = text.partition(":")
    if not colon or not tool.strip() or not condition.strip():
        raise Refused(
            "INVALID_ARGUMENT",
            f"{text[:80]!r} is not TOOL: CONDITION",
            hint="as in --allow 'pay: args.amount <= 50'",
        )
    return ToolRight(tool=tool.strip(), when=condition.strip())


def right_words(rights: Rights) -> str:
    """One member of a set of rights, in words."""
    parts: list[str] = []
    if rights.tools is not UNSET:
        parts.append(f"only {_tool_words(rights.tools)}" if rights.tools else "no tools")
    if rights.without:
        parts.append(f"without {_tool_words(rights.without)}")
    if rights.side_effect is not UNSET:
        parts.append(f"side effects up to {rights.side_effect}")
    if rights.calls is not UNSET:
        parts.append(f"{rights.calls} calls a run")
    if rights.session_calls is not UNSET:
        parts.append(f"{rights.session_calls} calls of the session")
    if rights.until_ms is not UNSET:
        parts.append(f"until {clock_time(rights.until_ms)}")
    return "; ".join(parts) or "everything"


def _tool_words(tools: Sequence[ToolRight]) -> str:
    return ", ".join(map(_one_tool, tools))


def _one_tool(right: ToolRight) -> str:
    name = right.tool or "any tool"
    if right.surface:
        name = f"{name} of {right.surface}"
    return f"{name} if {right.when}" if right.when else name
