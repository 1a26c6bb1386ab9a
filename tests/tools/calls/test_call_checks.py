"""Checks of a call before its intent: their order, and the code of each refusal."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rookery.actors.tools import ToolRegistry
from rookery.actors.tools.catalogue.catalogue import CatalogueTool, ToolCatalogue
from rookery.actors.tools.validation.capability_checks import fault, fault_of, status_of
from rookery.schemas.calls import CallArguments, Capability, RequestedCall, ToolFault
from rookery.schemas.digest import canonical_json, digest_bytes
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.run import CallStatus
from rookery.schemas.surfaces import LOCAL
from tests.tools.authoring.test_registry import registered
from tests.tools.tool_fixtures import TWO_NUMBERS, ToolWorld, call, capability, tools

TURNED_AWAY: list[tuple[RequestedCall, str, str]] = [
    (call(1, "nothing", a=1), "UNKNOWN_TOOL", "nothing"),
    (call(1, "x" * 1_000), "UNKNOWN_TOOL", "xxx"),
    (call(1, "fetch"), "TYPE_ERROR", "$"),
    (call(1, "fetch", a="one"), "TYPE_ERROR", "$.a"),
    (call(1, "fetch", 1, 2, 3), "TYPE_ERROR", "2 arguments, given 3"),
    (call(1, "fetch", 1, a=1), "TYPE_ERROR", "$.a"),
    (call(1, "fetch", a=1, c=1), "TYPE_ERROR", "c"),
    (call(1, "texts", "a", 2), "TYPE_ERROR", "$[1]"),
    (call(1, "small", "x" * 40), "PAYLOAD_TOO_LARGE", "40"),
    # The first error is reported.
    (call(1, "guarded", a="one"), "TYPE_ERROR", "$.a"),
]


@pytest.mark.parametrize(("asked", "code", "said"), TURNED_AWAY)
def test_a_refused_call_leaves_one_fact_and_holds_no_slot(
    world: ToolWorld, asked: RequestedCall, code: str, said: str
):
    node = world.begin()
    told = world.expect(node, 1)
    world.request_calls(asked)
    world.until(told.done)
    (refused,) = world.tool_facts()
    assert refused.error == told.result().outcome.error
    assert refused.error.code == code
    assert said in refused.error.message
    assert refused.status == "error"
    assert refused.request_digest == asked.digest
    assert world.backend.executions.total() == 0


# --- arguments in the blob store ------------------------------------------------------------------


def large(world: ToolWorld, node: Any, *args: Any, name: str = "texts") -> RequestedCall:
    """A call whose arguments are in the blob store."""
    text = canonical_json(CallArguments(args=list(args)))
    return call(1, name, *args, blob=world.store(node, text))


def test_large_arguments_are_fetched_and_checked_before_the_intent():
    with ToolWorld(threads=True) as world:
        node = world.begin()
        asked = large(world, node, "x" * 100_000)
        world.request_calls(asked)
        world.until(lambda: world.kinds() == ["requested", "intent_recorded", "completed"])
        assert world.tool_facts()[0].request_digest == asked.arguments_blob == asked.digest
        assert world.backend.contexts[0].args == ["x" * 100_000]
        assert all(len(stored.body) < 2_000 for stored in world.stored("turn"))


@pytest.mark.parametrize(
    ("args", "name", "code"),
    [
        (("x" * 100_000, 2), "texts", "TYPE_ERROR"),
        (("x" * 100_000,), "small", "PAYLOAD_TOO_LARGE"),
    ],
)
def test_large_arguments_that_do_not_fit_end_the_call_before_it_begins(
    args: tuple[Any, ...], name: str, code: str
):
    with ToolWorld(threads=True) as world:
        node = world.begin()
        told = world.expect(node, 1)
        world.request_calls(large(world, node, *args, name=name))
        world.until(told.done)
        assert told.result().outcome.error.code == code
        assert world.kinds()[-1] == "refused"
        assert world.backend.executions.total() == 0


def test_a_blob_that_holds_no_arguments_ends_the_call():
    with ToolWorld(threads=True) as world:
        node = world.begin()
        world.request_calls(call(1, "texts", blob=world.store(node, b'{"args": 7')))
        world.until(lambda: world.kinds() == ["requested", "refused"])
        assert world.tool_facts()[-1].error.code == "INVALID_ARGUMENT"


def test_arguments_that_are_not_in_the_blob_store_end_the_call(world: ToolWorld):
    world.begin()
    world.request_calls(call(1, "texts", blob=digest_bytes(b"lost")))
    world.until(lambda: world.kinds() == ["requested", "refused"])
    assert world.tool_facts()[-1].error.code == "BLOB_NOT_FOUND"


# --- what is visible ------------------------------------------------------------------------------


def test_two_tools_of_one_name_are_refused_at_the_start():
    one, other = capability("fetch"), capability("fetch", idempotent=False)
    with pytest.raises(Refused, match="fetch") as caught:
        tools(one, other)
    assert caught.value.code == "TOOL_NAME_CONFLICT"


def test_a_run_gets_every_tool_with_the_digest_of_its_schema():
    visible = tools(capability("b"), capability("a", input_schema={"type": "array"}))
    first, second = visible.available_tools
    assert [first.name, second.name] == ["a", "b"]
    assert first.schema_digest != second.schema_digest
    other = tools(capability("b", input_schema=TWO_NUMBERS, idempotent=False))
    assert other.available_tools[0].schema_digest == second.schema_digest


def test_the_catalogue_holds_the_declared_tools_in_the_same_bytes_everywhere():
    visible = tools(capability("b"), capability("a"))
    declared = msgspec.json.decode(visible.catalogue_bytes, type=list[Capability])
    assert declared == [capability("a"), capability("b")]
    assert tools(capability("a"), capability("b")).catalogue_bytes == visible.catalogue_bytes


def test_the_tools_of_a_registry_are_local_ones():
    visible = ToolCatalogue.local(ToolRegistry.of(registered("add")))
    (tool,) = visible
    assert isinstance(tool, CatalogueTool)
    assert (tool.surface, tool.available.name, tool.available.awaited) == (LOCAL, "add", False)
    assert "add" in visible
    assert "sub" not in visible


# --- faults ---------------------------------------------------------------------------------------


def test_any_error_of_a_tool_can_be_stored():
    wrong = fault("C" * 200, "half a letter: \ud800" + "x" * 10_000)
    assert len(wrong.code) == 100
    assert len(wrong.message) == 4_000
    assert msgspec.json.decode(msgspec.json.encode(wrong), type=ToolFault) == wrong


def test_a_programs_view_of_a_refusal_has_its_hint():
    assert fault_of(Refused("TYPE_ERROR", "no", hint="so")) == ToolFault("TYPE_ERROR", "no (so)")
    assert fault_of(Failed("INVALID_RESULT", "no")) == ToolFault("INVALID_RESULT", "no")


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("PERMISSION_DENIED", CallStatus.DENIED),
        ("TIMEOUT_TOOL", CallStatus.TIMEOUT),
        ("TOOL_ERROR", CallStatus.ERROR),
        ("ANYTHING_ELSE", CallStatus.ERROR),
    ],
)
def test_the_record_of_a_call_has_a_status_for_every_fault(code: str, status: CallStatus):
    assert status_of(ToolFault(code, "")) is status
