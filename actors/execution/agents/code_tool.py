"""``run_code`` as a model sees it: its description with the tools of its programs, and its results.

The description depends on nothing but the run's environment, so that it is the same for every
question of the run, on every node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rookery.actors.execution.agents.model_port import CODE_SCHEMA, ModelTool
from rookery.actors.sandbox import Tool
from rookery.schemas.agents import RUN_CODE
from rookery.schemas.calls import CallArguments
from rookery.schemas.errors import Refused
from rookery.schemas.run import Language, RunResult, RunStatus

__all__ = ["check_code_arguments", "code_tool", "code_value"]

STUBS_CHARS_MAX: Final = 16_000
"""About 4,000 tokens; programs find further tools themselves."""
_TYPES: Final[Mapping[Language, Mapping[str, str]]] = {
    Language.PYTHON: {
        "string": "str",
        "integer": "int",
        "number": "float",
        "boolean": "bool",
        "array": "list",
        "object": "dict",
        "null": "None",
    },
    Language.TYPESCRIPT: {
        "string": "string",
        "integer": "number",
        "number": "number",
        "boolean": "boolean",
        "array": "unknown[]",
        "object": "object",
        "null": "null",
    },
}
_ANY: Final = {Language.PYTHON: "object", Language.TYPESCRIPT: "unknown"}
_TEXT: Final = (
    "Execute a program of {language} in this session's sandbox. Names that it defines are there in "
    "later programs of the session. Its last expression is the result; what it prints is shown "
    "beside. It can call these tools:\n{stubs}"
)
_MORE: Final = "\nFind {count} more by search_tools(words) and describe_tool(name)."


def code_tool(language: Language, tools: Sequence[Tool]) -> ModelTool:
    """The tool, for a session of this language whose programs see these tools."""
    lines: list[str] = []
    left = STUBS_CHARS_MAX
    shown = [tool for tool in tools if tool.capability is not None and not tool.hidden]
    for tool in shown:
        line = _stub(language, tool)
        if (left := left - len(line)) < 0:
            break
        lines.append(line)
    text = _TEXT.format(language=language.value, stubs="\n".join(lines) or "none")
    if len(lines) < len(shown):
        text += _MORE.format(count=len(shown) - len(lines))
    return ModelTool(name=RUN_CODE, description=text, schema=CODE_SCHEMA)


def check_code_arguments(arguments: CallArguments) -> None:
    """Raise ``Refused`` for arguments that are not those of ``run_code``."""
    code, others = arguments.kwargs.get("code"), sorted(arguments.kwargs.keys() - {"code"})
    if others:
        raise Refused("INVALID_ARGUMENT", f"{RUN_CODE}: unknown argument {others[0][:80]!r}")
    if not isinstance(code, str) or not code.strip():
        raise Refused("TYPE_ERROR", f"{RUN_CODE}: $.code is not the text of a program")


def code_value(result: RunResult) -> dict[str, Any]:
    """The result of a program as its model gets it; an exception has its line."""
    value: dict[str, Any] = {"status": result.status.value}
    if result.status is RunStatus.OK:
        value["result"] = result.result
    if result.stdout:
        value["stdout"] = result.stdout
    if result.stderr:
        value["stderr"] = result.stderr
    if result.error is not None:
        error = {"code": result.error.code, "message": result.error.message}
        if result.error.hint:
            error["hint"] = result.error.hint
        value["error"] = error
    return value


def _stub(language: Language, tool: Tool) -> str:
    assert tool.capability is not None
    schema, types = tool.capability.input_schema, _TYPES[language]
    fields = schema.get("properties", {}) if isinstance(schema, dict) else {}
    required = schema.get("required", ()) if isinstance(schema, dict) else ()
    arguments = [
        f"{name}{'' if name in required else '?'}: {_type_of(one, types, _ANY[language])}"
        for name, one in fields.items()
    ]
    call = f"{tool.name}({', '.join(arguments)})"
    description = tool.capability.description.strip().partition("\n")[0]
    comment = "#" if language is Language.PYTHON else "//"
    return f"{'await ' if tool.awaited else ''}{call}  {comment} {description}"


def _type_of(schema: Any, types: Mapping[str, str], unknown: str) -> str:
    kind = schema.get("type") if isinstance(schema, dict) else None
    return types.get(kind, unknown) if isinstance(kind, str) else unknown
