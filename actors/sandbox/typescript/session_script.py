"""Edits JavaScript for a session, so that its names outlive the run and its last value is returned.

A script cannot redeclare a name of an earlier script, so top-level declarations become ``var``;
this module refuses the redeclarations within one source. A plain assignment creates a name, too, as
in sloppy mode.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from rookery.actors.sandbox.typescript.module_statements import declaration_in, exported_value
from rookery.actors.sandbox.typescript.syntax import Edit, Node, Spans, ask

__all__ = ["ScriptProblem", "SessionScript", "session_script"]

_LEXICAL = frozenset(("abstract_class_declaration", "class_declaration", "lexical_declaration"))
_FUNCTIONS = frozenset(("function_declaration", "generator_function_declaration"))
_CLASSES = frozenset(("abstract_class_declaration", "class_declaration"))
_NOT_EXECUTED = frozenset(
    (
        "ambient_declaration",
        "comment",
        "empty_statement",
        "function_signature",
        "interface_declaration",
        "type_alias_declaration",
    )
)
_DECLARE = _LEXICAL | _FUNCTIONS | _NOT_EXECUTED | {"import_statement", "variable_declaration"}
_TARGETS = """
(assignment_expression left: (identifier) @assigned)
(augmented_assignment_expression left: (identifier) @assigned)
(update_expression argument: (identifier) @assigned)
(for_in_statement !kind left: (identifier) @assigned)
(assignment_expression left: [(array_pattern) (object_pattern)] @pattern)
(variable_declarator name: [(array_pattern) (object_pattern)] @bound)
(variable_declarator name: (identifier) @bound)
(required_parameter pattern: (_) @bound)
(optional_parameter pattern: (_) @bound)
(arrow_function parameter: (identifier) @bound)
(catch_clause parameter: (_) @bound)
(for_in_statement kind: _ left: (_) @bound)
(function_declaration name: (identifier) @bound)
(function_expression name: (identifier) @bound)
(class_declaration name: (type_identifier) @bound)
(assignment_expression "using" left: (identifier) @bound)
"""
_NAMES = """
[(identifier) (shorthand_property_identifier_pattern)] @name
(assignment_pattern right: (_) @value)
(object_assignment_pattern right: (_) @value)
[(computed_property_name) (member_expression) (subscript_expression)] @value
"""
_RETURNS = """
(return_statement) @return
[
  (arrow_function) (function_declaration) (function_expression) (generator_function)
  (generator_function_declaration) (method_definition)
] @function
"""

_PRINTED_NAMESPACE = b"(function(_"
_NAMESPACE = re.compile(
    rb"\(function\(_\w+\) \{.*\}\)\((?P<name>[\w$]+) \|\| \((?P=name) = \{\}\)\);?", re.DOTALL
)


class ScriptProblem(NamedTuple):
    """A wrong use of a name in a source."""

    node: Node
    code: str
    message: str


class SessionScript(NamedTuple):
    edits: list[Edit]
    assigned: list[str]
    """Assigned names without a declaration; they become names of the session."""
    ends_with_value: bool
    problem: ScriptProblem | None


class _Names:
    """The top-level declarations of one source."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.kinds: dict[str, str] = {}
        self.constants: set[str] = set()
        self.problem: ScriptProblem | None = None

    def text(self, node: Node) -> str:
        return self._data[node.start_byte : node.end_byte].decode()

    def declare(self, node: Node, kind: str) -> None:
        name = self.text(node)
        before, self.kinds[name] = self.kinds.get(name), kind
        if before and (kind in _LEXICAL or before in _LEXICAL):
            message = f"identifier {name!r} has already been declared"
            self.problem = self.problem or ScriptProblem(node, "SYNTAX_ERROR", message)


def session_script(root: Node, data: bytes, *, edition_1: bool = False) -> SessionScript:
    """The edits for a checked source. Edition 1 has no exports, and only the last statement can be
    the value."""
    names = _Names(data)
    edits: list[Edit] = []
    statements = root.named_children
    for statement in statements:
        node = statement if edition_1 else declaration_in(statement)
        if node.type == "lexical_declaration":
            edits += _variables(node, names)
        elif node.type in _CLASSES:
            edits += _class(node, names)
        else:
            for name in _declared(node):
                names.declare(name, node.type)
    assigned, problem = _assigned(root, names)
    if edition_1:
        run = [node for node in statements if node.type not in _NOT_EXECUTED]
    else:
        run = [node for node in statements if not _is_declaration(node)]
        filled = (
            {node.id: _namespace_edits(node, data) for node in run}
            if _PRINTED_NAMESPACE in data
            else {}
        )
        edits += [edit for found in filled.values() for edit in found]
        run = [node for node in run if not filled.get(node.id)]
    return SessionScript(
        edits=edits,
        assigned=sorted(assigned - names.kinds.keys()),
        ends_with_value=bool(run) and _is_value(run[-1]),
        problem=names.problem or problem or _stray_return(root),
    )


def _is_declaration(node: Node) -> bool:
    """Whether a statement has no value, so that an earlier statement's value counts."""
    if node.type == "export_statement":
        return exported_value(node) is None
    return node.type in _DECLARE


def _is_value(node: Node) -> bool:
    return node.type == "expression_statement" or exported_value(node) is not None


def _namespace_edits(node: Node, data: bytes) -> list[Edit]:
    """Edits for a namespace, which the transformer prints as a call without a value."""
    found = _NAMESPACE.fullmatch(data, node.start_byte, node.end_byte)
    if node.type != "expression_statement" or found is None:
        return []
    name = found["name"].decode()
    call = node.named_children[0]
    return [
        Edit(call.start_byte, call.start_byte, f"var {name}=("),
        Edit(call.end_byte, call.end_byte, f",{name})"),
    ]


def _variables(node: Node, names: _Names) -> Iterator[Edit]:
    keyword = node.children[0]
    if keyword.type not in ("let", "const"):
        return
    yield Edit(keyword.start_byte, keyword.end_byte, "var")
    for declarator in node.named_children:
        name = declarator.child_by_field_name("name")
        if declarator.type != "variable_declarator" or name is None:
            continue
        for bound in _bound_names(name):
            names.declare(bound, node.type)
            if keyword.type == "const":
                names.constants.add(names.text(bound))
        if declarator.child_by_field_name("value") is None:
            yield Edit(declarator.end_byte, declarator.end_byte, "=void 0")


def _class(node: Node, names: _Names) -> Iterator[Edit]:
    name = node.child_by_field_name("name")
    if name is None:  # A syntax error of the grammar.
        return
    names.declare(name, node.type)
    yield Edit(node.start_byte, node.start_byte, f"var {names.text(name)}=")
    yield Edit(node.end_byte, node.end_byte, ";")


def _declared(node: Node) -> Iterator[Node]:
    """The names that a function or ``var`` declares."""
    if node.type in _FUNCTIONS:
        declarators = [node]
    else:
        declarators = node.named_children if node.type == "variable_declaration" else []
    for declarator in declarators:
        if (name := declarator.child_by_field_name("name")) is not None:
            yield from _bound_names(name)


def _bound_names(pattern: Node) -> list[Node]:
    """The names that a pattern binds, without its default values and computed keys."""
    if pattern.type == "identifier":
        return [pattern]
    found = ask(_NAMES, pattern)
    values = Spans(found.get("value", ()))
    return [node for node in found.get("name", ()) if not values.contain(node)]


def _assigned(root: Node, names: _Names) -> tuple[set[str], ScriptProblem | None]:
    """All assigned names, and an assignment to a constant that no declaration shadows."""
    found = ask(_TARGETS, root)
    targets = list(found.get("assigned", ()))
    for pattern in found.get("pattern", ()):
        targets += _bound_names(pattern)
    bound = Counter(
        names.text(name) for node in found.get("bound", ()) for name in _bound_names(node)
    )
    for node in sorted(targets, key=lambda target: target.start_byte):
        name = names.text(node)
        if name in names.constants and bound[name] == 1:
            message = f"cannot assign to {name!r} because it is a constant"
            return set(), ScriptProblem(node, "TYPE_ERROR", message)
    return {names.text(node) for node in targets}, None


def _stray_return(root: Node) -> ScriptProblem | None:
    """The first ``return`` outside of a function."""
    found = ask(_RETURNS, root)
    functions = Spans(found.get("function", ()))
    for node in found.get("return", ()):
        if not functions.contain(node):
            return ScriptProblem(node, "SYNTAX_ERROR", "'return' outside of a function")
    return None
