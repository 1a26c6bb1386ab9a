"""A call whose tool is reloaded before its intent has the rights to the tool as it is now."""

from __future__ import annotations

from typing import Any

import pytest

from rookery.actors.tools.attempts.call_slots import CallSlots
from rookery.actors.tools.authoring.decorator import tool
from rookery.actors.tools.authoring.registry import ToolRegistry
from rookery.actors.tools.calls import CallRules
from rookery.actors.tools.catalogue import ToolCatalogue
from rookery.actors.tools.effects import AttemptLost, BeginCall
from rookery.actors.tools.evolve import evolve_calls
from rookery.actors.tools.state import SessionCalls
from rookery.schemas.calls import RequestedCall
from rookery.schemas.facts import tool as facts
from rookery.schemas.facts.turn import ToolCallsReturned
from rookery.schemas.protection.rights import Rights, RightsSet, ToolRight
from rookery.schemas.run import SideEffect

READS: RightsSet = (Rights(side_effect=SideEffect.READ),)


def catalogue(side_effect: str = "read", kind: type = int) -> ToolCatalogue:
    def look(what: Any) -> str:
        return str(what)

    look.__annotations__ = {"what": kind, "return": str}
    return ToolCatalogue.local(
        ToolRegistry.of(tool(side_effect=side_effect, idempotent=True)(look))
    )


def rules(offered: ToolCatalogue, epoch: str = "n1", rights: RightsSet = READS) -> CallRules:
    declared = [one.capability for one in offered]
    slots: Any = CallSlots(declared, None, None)  # type: ignore[arg-type]
    return CallRules(offered, slots, epoch, rights)


def requested() -> SessionCalls:
    """A call that waits for its arguments, with the rights to it."""
    call = RequestedCall(operation_id="o", number=1, name="look", digest="0", arguments_blob="0")
    batch = ToolCallsReturned(run="r", tool_count=1, calls=(call,), row="")
    (fact,) = rules(catalogue()).on_requested(SessionCalls(), "s", batch, now_ms=1)
    assert isinstance(fact, facts.Requested)
    return evolve_calls(SessionCalls(), fact)


def begin(offered: ToolCatalogue, rights: RightsSet = READS) -> Any:
    reloaded = rules(offered, rights=rights)
    (fact,) = reloaded.begin(requested(), "s", BeginCall(operation_id="o"), now_ms=1)
    return fact


def test_an_unchanged_tool_is_called():
    assert isinstance(begin(catalogue()), facts.IntentRecorded)


@pytest.mark.parametrize(
    ("offered", "rights", "code"),
    [
        (catalogue("write"), READS, "RIGHT_MISSING"),
        (catalogue(kind=str), READS, "UNKNOWN_TOOL"),
        (catalogue(), (Rights(without=(ToolRight(tool="look"),)),), "RIGHT_MISSING"),
        (catalogue(), (Rights(until_ms=1),), "RIGHT_MISSING"),
        (catalogue(), (Rights(calls=0),), "RIGHT_MISSING"),
        (
            catalogue(),
            (Rights(tools=(ToolRight(tool="look", when="args.what == 1"),)),),
            "RIGHT_MISSING",
        ),
    ],
)
def test_a_changed_tool_or_right_is_refused(offered: ToolCatalogue, rights: RightsSet, code: str):
    refused = begin(offered, rights)
    assert isinstance(refused, facts.Refused)
    assert refused.error.code == code


def test_a_lost_attempt_is_not_repeated_without_the_right():
    first, lost = rules(catalogue()), AttemptLost(operation_id="o", attempt=1)
    state = requested()
    for fact in first.begin(state, "s", BeginCall(operation_id="o"), now_ms=1):
        state = evolve_calls(state, fact)  # type: ignore[arg-type]
    for rights, kind in (
        (READS, facts.IntentRecorded),
        ((Rights(tools=()),), facts.RecoveryRequired),
    ):
        (left,) = rules(catalogue(), "n2", rights).on_attempt_lost(state, "s", lost, now_ms=1)
        assert isinstance(left, kind)
