"""Names, schemas and programs that MCP clients and sessions get: stable, and free of surprises.

``ROOKERY_REDRAW=1 pytest tests/mcp_server/test_schemas.py`` writes the golden file again.
"""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.bus.roles import Role
from rookery.ops.config import Config
from rookery.ops.gateways import RealmLink
from rookery.ops.mcp_server.realm_tools import RealmTool, RealmTools
from rookery.ops.mcp_server.run_follower import RunFollower
from rookery.ops.mcp_server.run_report import ErrorReport, resource_uri
from rookery.ops.mcp_server.session_tools import SessionTool, call_program
from rookery.schemas.calls import Capability
from rookery.schemas.errors import Refused
from rookery.schemas.replies import ToolView
from rookery.schemas.run import Language, SessionLimits

GOLDEN = Path(__file__).parents[1] / "golden" / "mcp_tools.json"


def own_tools() -> list[RealmTool]:
    link = RealmLink(Config(), Role.CLIENT)
    return list(RealmTools(link, RunFollower(link), "mcp", None).by_name.values())


def session_tool(
    schema: dict[str, Any],
    *,
    language: Language = Language.PYTHON,
    awaited: bool = False,
    output: Any = None,
) -> SessionTool:
    capability = Capability(
        name="act", description="It acts.", input_schema=schema, output_schema=output or {}
    )
    view = ToolView(surface="local", awaited=awaited, schema_digest="", capability=capability)
    return SessionTool(view, language, SessionLimits())


def test_names_and_schemas_are_those_that_clients_know():
    found = {tool.name: tool.input_schema for tool in own_tools()}
    text = json.dumps(found, indent=1, sort_keys=True) + "\n"
    if os.environ.get("ROOKERY_REDRAW"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


@pytest.mark.parametrize("tool", own_tools(), ids=lambda tool: tool.name)
def test_schemas_are_objects_without_references_and_answers_may_be_errors(tool: RealmTool):
    for schema in (tool.input_schema, tool.output_schema):
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["type"] == "object"
        assert "$ref" not in json.dumps(schema)
    error = {"code": "SERVER_UNREACHABLE", "message": "no", "retryable": True}
    jsonschema.validate({"error": error}, tool.output_schema)
    assert set(ErrorReport.__struct_fields__) >= set(error)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(st.dictionaries(st.text(min_size=1), JSON, max_size=4))
def test_a_python_program_passes_exactly_the_arguments(arguments: dict[str, Any]):
    program = call_program(session_tool({"type": "object"}), arguments)
    tree = ast.parse(program, mode="eval").body
    assert isinstance(tree, ast.Call)
    passed: dict[str, Any] = {}
    for word in tree.keywords:
        value = ast.literal_eval(word.value)
        passed |= value if word.arg is None else {word.arg: value}
    assert (passed, tree.args) == (arguments, [])


@given(st.lists(JSON, max_size=4))
def test_positional_arguments_are_a_list(positional: list[Any]):
    tool = session_tool({"type": "array", "items": {"$ref": "#/$defs/x"}, "$defs": {"x": {}}})
    jsonschema.Draft202012Validator(tool.input_schema).validate({"args": positional})
    program = call_program(tool, {"args": positional})
    tree = ast.parse(program, mode="eval").body
    assert isinstance(tree, ast.Call)
    assert [ast.literal_eval(one) for one in tree.args] == positional
    with pytest.raises(Refused, match="positional"):
        call_program(tool, {"args": positional, "more": 1})


def test_a_typescript_program_passes_arguments_by_position_and_awaits_what_is_awaited():
    schema = {"type": "object", "properties": {"a": {}, "b": {}}}
    tool = session_tool(schema, language=Language.TYPESCRIPT, awaited=True)
    program = call_program(tool, {"b": 2, "a": '"</script>'})
    start, end = 'await act(...JSON.parse("', '"))'
    assert program.startswith(start)
    assert program.endswith(end)
    inner = json.loads(f'"{program.removeprefix(start).removesuffix(end)}"')
    assert json.loads(inner) == ['"</script>', 2]
    with pytest.raises(Refused, match="UNSUPPORTED_FEATURE"):
        call_program(tool, {"b": 2})
    with pytest.raises(Refused, match="TYPE_ERROR"):
        call_program(tool, {"c": 2})


def test_a_tools_result_schema_keeps_its_references_or_says_nothing():
    item = {"type": "object", "properties": {"of": {"$ref": "#/$defs/Item"}}}
    kept = session_tool({}, output={"$ref": "#/$defs/Item", "$defs": {"Item": item}})
    validator = jsonschema.Draft202012Validator(kept.output_schema)
    assert validator.is_valid({"result": {"of": {}}})
    assert not validator.is_valid({"result": {"of": 1}})
    assert validator.is_valid({"status": "waiting_for_approval"})
    for reference in ("#", "#/properties/x", "https://example.com/schema"):
        other = session_tool({}, output={"properties": {"x": {"$ref": reference}}})
        assert other.output_schema["properties"]["result"] == {}


def test_the_address_of_a_resource_has_no_room_for_another_path():
    assert resource_uri("a/b", "artifacts/x y") == "rookery://runs/a%2Fb/artifacts/x%20y"
