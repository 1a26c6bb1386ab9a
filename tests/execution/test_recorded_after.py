"""Calls that may be repeated without harm are recorded after they are made, together with their
outcome; every other call has its intent on record first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from rookery.actors.execution.driver import Finished
from rookery.actors.tools.authoring.decorator import tool
from rookery.actors.tools.authoring.registry import TOOL_ATTRIBUTE, ToolRegistry
from rookery.actors.tools.catalogue.catalogue import ToolCatalogue
from rookery.schemas.calls import Capability, RecordMode
from rookery.schemas.errors import Refused
from rookery.schemas.facts.tool import IntentRecorded
from rookery.schemas.run import RunResult
from tests.execution.driver_scripts import SCRIPTS, Script, wants
from tests.execution.scripted_driver import SESSION, ScriptedWorld

READS = "fetch"


def read_often(run: str) -> Script:
    """Twenty reads, one after the other."""
    del run
    values = []
    for number in range(1, 21):
        results = yield wants(number, tool=READS)
        values.append(results[number].value)
    yield Finished(RunResult(result=values), kept=True)


def read_then_send(run: str) -> Script:
    """Two reads, and then a call that acts."""
    del run
    yield wants(1, tool=READS)
    yield wants(2, tool=READS)
    results = yield wants(3, tool="send")
    yield Finished(RunResult(result=results[3].value), kept=True)


class ReadingWorld(ScriptedWorld):
    """Scripted nodes, one of whose tools is recorded after its calls."""

    scripts: Mapping[str, Callable[[str], Script]] = {
        **SCRIPTS,
        "read_often": read_often,
        "read_then_send": read_then_send,
    }

    def __init__(self) -> None:
        super().__init__()
        self.visible = ToolCatalogue(
            one._replace(capability=replace(one.capability, record=RecordMode.AFTER))
            if one.available.name == READS
            else one
            for one in self.visible
        )

    def intents(self) -> list[str]:
        facts = self.recorded("tool")
        return [fact.operation_id for fact in facts if isinstance(fact, IntentRecorded)]


def result_of(asked: Any) -> Any:
    return msgspec.json.decode(asked.answers[-1].body)["result"]


def test_reads_in_sequence_share_messages():
    with ReadingWorld() as world:
        world.begin()
        asked = world.play("read_often")
        world.until(lambda: asked.answers)
        assert result_of(asked) == ["done"] * 20
        assert len(world.intents()) == 20
        assert len(world.stored("turn", SESSION)) == 1


def test_what_acts_has_its_intent_and_all_reads_before_it_on_record():
    with ReadingWorld() as world:
        world.begin()
        world.backend.hold = True
        asked = world.play("read_then_send")
        world.until(lambda: world.backend.executions)
        world.backend.hold = False
        seen: list[int] = []
        original = world.backend.at_work

        def at_work(context: Any) -> Any:
            if context.name == "send":
                seen.append(len(world.intents()))
            return original(context)

        world.backend.at_work = at_work  # type: ignore[method-assign]
        world.until(lambda: asked.answers)
        assert seen == [3], "two reads and the intent of the call itself"


@pytest.mark.parametrize("number", range(1, 21))
def test_a_node_that_dies_between_reads_loses_no_run(number: int):
    """Reads that are not on record are made again; a record has at least one execution."""
    with ReadingWorld() as world:
        world.begin()
        asked = world.play("read_often")
        world.until(lambda: len(world.backend.executions) >= number or asked.answers)
        world.nodes[-1].crash()
        world.begin()
        world.until(lambda: "completed" in world.kinds("turn"))
        recorded = world.intents()
        assert len(set(recorded)) == 20
        assert all(world.backend.executions[operation] >= 1 for operation in recorded)
        (end,) = [fact for fact in world.recorded() if hasattr(fact, "kept")]
        assert end.result.result == ["done"] * 20


def test_a_slow_read_is_on_record_while_it_runs():
    with ReadingWorld() as world:
        world.begin()
        world.backend.hold = True
        asked = world.play("read_often")
        world.until(lambda: world.backend.executions)
        world.pass_s(1)
        assert len(world.intents()) == 1
        world.backend.hold = False
        world.until(lambda: asked.answers)
        assert result_of(asked) == ["done"] * 20


def declared(**options: Any) -> Capability:
    @tool(**options)
    def look(place: str) -> str:
        """Look at a place."""
        return place

    registered = getattr(look, TOOL_ATTRIBUTE)
    return next(iter(ToolCatalogue.local(ToolRegistry.of(registered)))).capability


@pytest.mark.parametrize(
    ("options", "record"),
    [
        ({}, RecordMode.AFTER),
        ({"side_effect": "read"}, RecordMode.AFTER),
        ({"side_effect": "read", "record": "before"}, RecordMode.BEFORE),
        ({"side_effect": "read", "idempotent": False}, RecordMode.BEFORE),
        ({"side_effect": "write"}, RecordMode.BEFORE),
        ({"approval_policy": "manual"}, RecordMode.BEFORE),
    ],
)
def test_only_what_may_be_repeated_is_recorded_after_it_is_made(
    options: dict[str, Any], record: RecordMode
):
    assert declared(**options).record is record


@pytest.mark.parametrize(
    "options",
    [{"side_effect": "write"}, {"approval_policy": "manual"}, {"idempotent": False}],
)
def test_no_other_tool_can_be_recorded_after_its_calls(options: dict[str, Any]):
    with pytest.raises(Refused, match="recorded after"):
        declared(record="after", **options)


def test_a_node_can_record_every_call_first():
    @tool
    def look(place: str) -> str:
        """Look at a place."""
        return place

    registry = ToolRegistry.of(getattr(look, TOOL_ATTRIBUTE))
    (one,) = ToolCatalogue.local(registry, RecordMode.BEFORE)
    assert one.capability.record is not RecordMode.AFTER
