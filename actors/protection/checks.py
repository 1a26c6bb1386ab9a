"""Whether rights allow a call. Pure.

A call is allowed if every member of the set allows it. A condition that has no truth value for the
call allows nothing: in ``tools`` it matches no call, in ``without`` every one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from rookery.actors.protection.approval_rules import ApprovalRule, RuleInput, RuleUndecided
from rookery.schemas.calls import RunEnvironment
from rookery.schemas.errors import Refused
from rookery.schemas.protection.policy import effect_class_of
from rookery.schemas.protection.rights import RIGHTS_MAX, Rights, RightsSet, ToolRight
from rookery.schemas.run import SideEffect

__all__ = [
    "CallSubject",
    "check_count",
    "check_rights",
    "hide_tools",
    "is_ever_allowed",
    "missing_right",
]

_ORDER: Final = {effect: level for level, effect in enumerate(SideEffect)}


class CallSubject(NamedTuple):
    """The call that rights allow or not."""

    name: str
    surface: str
    side_effect: SideEffect
    idempotent: bool
    session: str
    number: int
    """Of the call in its run, from 1."""
    ordinal: int
    """Of the call in its session, from 1; 0 if an older version requested it."""
    arguments: Any
    """By name, or a list, without sensitive ones; ``None`` if they are not in the fact."""
    sensitive: frozenset[str] = frozenset()
    """The names of the sensitive ones."""
    risk: str | UnsetType = UNSET


def check_rights(rights: Rights) -> Rights:
    """The rights as a client sent them; raises ``INVALID_ARGUMENT`` or ``RULE_INVALID``."""
    allowed = () if rights.tools is UNSET else rights.tools
    if max(len(allowed), len(rights.without)) > RIGHTS_MAX:
        text = f"rights name more than {RIGHTS_MAX} tools"
        raise Refused("INVALID_ARGUMENT", text, hint="name a surface instead")
    for right in (*allowed, *rights.without):
        if not (right.tool or right.surface or right.when):
            raise Refused(
                "INVALID_ARGUMENT",
                "an entry of rights names no tool, no surface and no condition",
                hint='as in {"tool": "pay", "when": "args.amount <= 50"}',
            )
        if right.when:
            _check_condition(right.when)
    return rights


def _check_condition(text: str) -> None:
    try:
        ApprovalRule.of(text)
    except Refused as refusal:
        what = f"the condition {text[:80]!r} of a right: {refusal.message}"
        raise Refused("RULE_INVALID", what, hint=refusal.hint) from None


def check_count(rights: RightsSet) -> RightsSet:
    """The set, unless it has too many members."""
    if len(rights) > RIGHTS_MAX:
        raise Refused(
            "INVALID_ARGUMENT",
            f"{len(rights)} rights would apply together, the limit is {RIGHTS_MAX}",
            hint="rookery sessions rights SESSION",
        )
    return rights


def missing_right(rights: RightsSet, call: CallSubject, *, now_ms: int) -> str:
    """Why the call is not allowed; empty if it is."""
    reasons = (_reason(one, call, now_ms) for one in rights)
    return next((reason for reason in reasons if reason), "")


def is_ever_allowed(rights: RightsSet, name: str, surface: str, side_effect: SideEffect) -> bool:
    """Whether some call of the tool is allowed before the rights expire, if its arguments meet the
    conditions."""
    return all(
        not _ceiling_reason(one, name, side_effect, 0)
        and (one.tools is UNSET or any(_names(right, name, surface) for right in one.tools))
        and not any(not right.when and _names(right, name, surface) for right in one.without)
        and one.calls != 0
        and one.session_calls != 0
        for one in rights
    )


def hide_tools(
    environment: RunEnvironment, rights: RightsSet, surface_of: Callable[[str], str]
) -> RunEnvironment:
    """The environment, in which ``list_tools()`` shows only tools that some call may reach. Those
    of surfaces are read later, and are hidden by the rights that are left with them."""
    tools = tuple(
        offered
        if is_ever_allowed(rights, offered.name, surface_of(offered.name), offered.side_effect)
        else replace(offered, hidden=True)
        for offered in environment.tools
    )
    surfaces = environment.surfaces
    if surfaces is not UNSET:
        surfaces = replace(surfaces, rights=rights)
    return replace(environment, tools=tools, surfaces=surfaces)


def _reason(rights: Rights, call: CallSubject, now_ms: int) -> str:
    if reason := _ceiling_reason(rights, call.name, call.side_effect, now_ms):
        return reason
    if rights.calls is not UNSET and call.number > rights.calls:
        return f"{call.name} is call {call.number} of its run, which may make {rights.calls}"
    if rights.session_calls is not UNSET and call.ordinal > rights.session_calls:
        return (
            f"{call.name} is call {call.ordinal} of its session, which may make "
            f"{rights.session_calls}"
        )
    refused: list[str] = []
    if rights.tools is not UNSET and not any(
        _matches(right, call, refused, undecided=False) for right in rights.tools
    ):
        return f"no right covers this call of {call.name}{_because(refused)}"
    if any(_matches(right, call, refused, undecided=True) for right in rights.without):
        return f"the right to this call of {call.name} was withdrawn{_because(refused)}"
    return ""


def _ceiling_reason(rights: Rights, name: str, side_effect: SideEffect, now_ms: int) -> str:
    """Of what holds for all calls of a tool."""
    if rights.until_ms is not UNSET and now_ms >= rights.until_ms:
        return f"the right to call {name} has expired"
    if rights.side_effect is not UNSET and _ORDER[side_effect] > _ORDER[rights.side_effect]:
        return f"{name} has side effect {side_effect}, the rights end at {rights.side_effect}"
    return ""


def _names(right: ToolRight, name: str, surface: str) -> bool:
    return right.tool in ("", name) and right.surface in ("", surface)


def _matches(right: ToolRight, call: CallSubject, refused: list[str], *, undecided: bool) -> bool:
    """Whether the entry covers the call; ``undecided`` is the answer of a condition without a
    truth value. ``refused`` gets why a condition did not hold."""
    if not _names(right, call.name, call.surface):
        return False
    if not right.when:
        return True
    try:
        if call.arguments is None:
            raise RuleUndecided("the arguments are too large to be checked")
        holds = ApprovalRule.of(right.when).allows(_rule_input(call))
    except (RuleUndecided, Refused) as error:
        why = f"the condition {right.when[:80]} is undecided: {error}"
        if hidden := sorted(name for name in call.sensitive if name in right.when):
            why += f"; {', '.join(hidden)} is sensitive, and no condition can read it"
        refused.append(why)
        return undecided
    if not holds:
        refused.append(f"the condition {right.when[:80]} is false")
    return holds


def _rule_input(call: CallSubject) -> RuleInput:
    return RuleInput(
        name=call.name,
        surface=call.surface,
        side_effect=call.side_effect.value,
        idempotent=call.idempotent,
        session=call.session,
        args=call.arguments,
        counts={},
        risk=call.risk,
        effect_class=effect_class_of(call.side_effect).value,
    )


def _because(refused: list[str]) -> str:
    return f": {refused[0]}" if refused else ""
