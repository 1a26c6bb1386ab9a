"""Static checks of a program: they report early what cannot work in the sandbox.

The checks advise the author; WebAssembly isolates the program. They look at syntax only, so text in
a string literal is never reported.
"""

from __future__ import annotations

import posixpath
from collections.abc import Container, Iterable, Iterator, Set
from typing import NamedTuple

from rookery.actors.sandbox.typescript.module_statements import NO_MODULES, requested
from rookery.actors.sandbox.typescript.syntax import Node, Spans, ask

__all__ = ["Violation", "first_violation"]

_CALLS = frozenset(("eval", "Function", "require", "fetch"))
_OBJECTS = frozenset(
    (
        "Bun",
        "Deno",
        "SharedWorker",
        "WebSocket",
        "Worker",
        "XMLHttpRequest",
        "globalThis",
        "navigator",
        "process",
    )
)
_TOOLS = frozenset(("fetch_url", "query_db", "send_email"))
_TOOLS_HINT = "list_tools() says what can be called"
_PATH_HINT = f"use a relative path; other files are reached through tools: {_TOOLS_HINT}"
_FILE_CALLS = frozenset(
    f"{name}Sync"
    for name in ("appendFile", "mkdir", "readFile", "readdir", "rm", "stat", "unlink", "writeFile")
)
_OUTSIDE_HINT = "the outside world is reached through tools only"
_ENGINE_HINT = "write it without: the engine does not know it"
_PATTERNS = """
(import_statement) @statement
(program (export_statement) @statement)
(call_expression function: (import)) @module
(call_expression function: (identifier) @call)
(call_expression arguments: (arguments . (string))) @literal
(new_expression constructor: (identifier) @made)
(member_expression object: (identifier) @object)
(subscript_expression object: (identifier) @object)
(decorator) @decorator
(public_field_definition "accessor" @accessor)
(with_statement) @with
(meta_property) @meta
(program (expression_statement (assignment_expression "using") @using))
(type_query) @type
(variable_declarator name: (identifier) @declared)
(function_declaration name: (identifier) @declared)
(required_parameter pattern: (identifier) @declared)
(optional_parameter pattern: (identifier) @declared)
(arrow_function parameter: (identifier) @declared)
(for_in_statement left: (identifier) @declared)
(array_pattern (identifier) @declared)
(pair_pattern value: (identifier) @declared)
(shorthand_property_identifier_pattern) @declared
"""
_ENGINE_LACKS = {
    "decorator": "decorators are not supported",
    "accessor": "accessor fields are not supported",
    "with": "with statements are not supported",
    "using": "using declarations are supported within blocks and functions only",
}


class Violation(NamedTuple):
    """A place in the source that uses what the sandbox does not have."""

    start_byte: int
    end_byte: int
    code: str
    message: str
    hint: str


def first_violation(
    root: Node,
    data: bytes,
    tools: Container[str],
    *,
    modules: Iterable[Node] | None = None,
    types: Spans | None = None,
    offered: Set[str] = NO_MODULES,
) -> Violation | None:
    """The first violation in the order of the source. A tool may have any name. ``modules`` are
    the statements that need a module, by default all imports and exports; calls may name the
    ``offered`` ones. Text within ``types`` is ignored, because types do not run."""
    found = ask(_PATTERNS, root)
    if found and types is not None:
        found = {name: [n for n in nodes if not types.contain(n)] for name, nodes in found.items()}
    queries = Spans(found.get("type", ()))
    statements = found.get("statement", ()) if modules is None else modules
    later = [node for node in found.get("module", ()) if not requested(node, data, offered)]
    wanted = [n for n in (*statements, *later) if not queries.contain(n)]
    wanted += [node for node in found.get("meta", ()) if _name(node, data) == "import.meta"]
    text = "modules are not available in the sandbox"
    violations = [_unsupported(node, text) for node in wanted]
    literal = found.get("literal", ()) if offered else ()
    required = {
        node.start_byte
        for node in literal
        if data.startswith(b"require", node.start_byte) and requested(node, data, offered)
    }
    violations += _outside_paths(literal, data, tools)
    for node in (*found.get("call", ()), *found.get("made", ())):
        name = _name(node, data)
        if name in tools or node.start_byte in required:
            continue
        if name in _CALLS or (name in _OBJECTS and node in found.get("made", ())):
            violations.append(_unsupported(node, f"{name}() is not available in the sandbox"))
        elif name in _TOOLS:
            text = f"no tool {name!r} is registered"
            violations.append(_violation(node, "UNKNOWN_TOOL", text, _TOOLS_HINT))
    declared = {_name(node, data) for node in found.get("declared", ())}
    for node in found.get("object", ()):
        name = _name(node, data)
        if name in _OBJECTS and name not in tools and name not in declared:
            violations.append(_unsupported(node, f"{name} is not available in the sandbox"))
    for kind, text in _ENGINE_LACKS.items():
        nodes = found.get(kind, ())
        violations += [_violation(n, "UNSUPPORTED_FEATURE", text, _ENGINE_HINT) for n in nodes]
    return min(violations, default=None)


def _outside_paths(
    calls: Iterable[Node], data: bytes, tools: Container[str]
) -> Iterator[Violation]:
    """Calls of functions of ``fs`` with a path that is outside of the session's files."""
    for call in calls:
        function = call.child_by_field_name("function")
        given = call.child_by_field_name("arguments")
        if function is None or given is None:
            continue
        name = _name(function, data).rpartition(".")[2]
        path = _name(given.named_children[0], data)[1:-1]
        if name in _FILE_CALLS and name not in tools and _is_outside(path):
            text = f"{name}() of {path[:200]!r}: a program has no files outside /work and /tmp"
            yield _violation(call, "UNSUPPORTED_FEATURE", text, _PATH_HINT)


def _is_outside(path: str) -> bool:
    whole = posixpath.normpath(posixpath.join("/work", path))
    return whole != "/" and not f"{whole}/".startswith(("/work/", "/tmp/"))  # noqa: S108


def _name(node: Node, data: bytes) -> str:
    return data[node.start_byte : node.end_byte].decode()


def _unsupported(node: Node, message: str) -> Violation:
    return _violation(node, "UNSUPPORTED_FEATURE", message, _OUTSIDE_HINT)


def _violation(node: Node, code: str, message: str, hint: str) -> Violation:
    return Violation(node.start_byte, node.end_byte, code, message, hint)
