"""Erases types by blanks; enums and namespaces that are written in parts are found before."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from rookery.actors.sandbox.typescript.module_statements import declaration_in
from rookery.actors.sandbox.typescript.syntax import Edit, Node, Spans, ask

__all__ = [
    "TypeErasure",
    "cross_part_reference",
    "erase_types",
]

# --- type erasure ---------------------------------------------------------------------------------

# Erases types by replacing them with blanks, so that every other character stays in its position.
#
# It knows which nodes of the grammar are types, and where a blank would change the meaning of its
# neighbours. Syntax that cannot be blanked is reported, for the transformer.


_PATTERNS = """
[
  (type_annotation) (type_parameters) (type_arguments) (implements_clause)
  (asserts_annotation) (type_predicate_annotation)
] @type

[(interface_declaration) (type_alias_declaration) (function_signature) (ambient_declaration)] @whole
(class_body [(method_signature) (abstract_method_signature) (index_signature)] @whole)
(public_field_definition ["declare" "abstract"]) @whole

[(as_expression) (satisfies_expression)] @cast
(call_expression function: [(as_expression) (satisfies_expression)] @ends)
(subscript_expression object: [(as_expression) (satisfies_expression)] @ends)

(non_null_expression "!" @mark)
(variable_declarator "!" @mark)
(public_field_definition ["!" "?"] @mark)
(optional_parameter "?" @mark)
(method_definition "?" @mark)
(abstract_class_declaration "abstract" @mark)
(hash_bang_line) @mark

(public_field_definition [(accessibility_modifier) (override_modifier) "readonly"] @modifier)
(method_definition [(accessibility_modifier) (override_modifier)] @modifier)
[(public_field_definition) (method_definition)] @member
(public_field_definition !value type: (_) @ends_field)

(required_parameter pattern: (this)) @this
(arrow_function return_type: (_)) @arrow

[(enum_declaration) (internal_module) (module) (import_alias)] @rest
(binary_expression left: (binary_expression "<") ">" right: (template_string)) @rest

[
  (expression_statement) (lexical_declaration) (public_field_definition) (return_statement)
  (throw_statement) (variable_declaration)
] @statement

[(lookup_type) (array_type)] @indexed
(type_query (call_expression function: [(identifier) (member_expression)]) @rest)
[(return_statement) (throw_statement) (yield_expression)] @restricted
(arrow_function type_parameters: (_)) @restricted
"""


_EDITION_1 = """
(required_parameter [(accessibility_modifier) (override_modifier) "readonly"]) @rest
(optional_parameter [(accessibility_modifier) (override_modifier) "readonly"]) @rest
"""
_EDITION_2 = """
(method_definition
  name: (property_identifier) @name
  parameters: (formal_parameters
    (_ [(accessibility_modifier) (override_modifier) "readonly"]) @rest)
  (#eq? @name "constructor"))
(required_parameter [(accessibility_modifier) (override_modifier) "readonly"] @mark)
(optional_parameter [(accessibility_modifier) (override_modifier) "readonly"] @mark)

(type_assertion) @rest
(instantiation_expression) @rest
(binary_expression (arrow_function)) @rest
(binary_expression "<" right: [(unary_expression "typeof") (new_expression !arguments)]) @rest
(binary_expression "<" @less)
(binary_expression [">" ">>" ">>>"] @more)
(new_expression type_arguments: (_) !arguments) @rest
(ternary_expression consequence: (_) @choice)
(ternary_expression alternative: (_) @choice)
(arrow_function return_type: (_)) @typed
(enum_body) @enum
(unary_expression ["+" "-" "~"] argument: [(string) (template_string)]) @signed

[
  (interface_declaration) (type_alias_declaration) (abstract_class_declaration)
  (ambient_declaration)
] @worded
"""
"""Includes syntax that the grammar and the compiler parse differently."""
_WITHOUT_TYPES = {"statement", "member"}
"""What alone leads to no edit: to look for each of the others takes 4 % of a short run."""
_LINE_BREAK_MESSAGE = "the line ends after 'interface', so it is a name there: write it on one line"
_SIGNED_TEXT_MESSAGE = "a sign before a text is not supported in an enum: write the number"
_CALLS = re.compile(rb"\s*[(`]")
_BRACKETS = ((b"(", b")"), (b"[", b"]"), (b"{", b"}"))
_NESTED_MAX = 16
_TYPES_BYTES_MAX = 1 << 13


class TypeErasure(NamedTuple):
    edits: list[Edit]
    rest: Node | None
    """The first node that cannot be blanked: then the edits are not used."""
    misread: tuple[Node, str] | None = None
    """Syntax that the transformer parses unlike the compiler, and the message for it."""

    @property
    def stretches(self) -> Spans:
        return Spans.between((edit.start, edit.end) for edit in self.edits)


def erase_types(root: Node, data: bytes, *, edition_1: bool = False) -> TypeErasure:
    """The edits for a source without syntax errors. Edition 1 trusted the grammar in all cases."""
    found = ask(_PATTERNS + (_EDITION_1 if edition_1 else _EDITION_2), root)
    if found.keys() <= _WITHOUT_TYPES:
        return TypeErasure([], None)

    def nodes(*names: str) -> list[Node]:
        return [node for name in names for node in found.get(name, ())]

    ends = {node.end_byte for node in nodes("statement")}
    members = {node.start_byte for node in nodes("member")}
    edits = [Edit(node.start_byte, node.end_byte) for node in nodes("type", "mark")]
    edits += [Edit(node.start_byte, node.end_byte, ";") for node in nodes("whole", "ends_field")]
    edits += [_cast(node, ends=node.end_byte in ends) for node in nodes("cast")]
    edits += [_cast(node, ends=True) for node in nodes("ends")]
    edits += [_modifier(node, first=node.start_byte in members) for node in nodes("modifier")]
    edits += [_with_comma(node, data) for node in nodes("this")]
    for node in nodes("arrow"):
        edits += _arrow(node, data)
    edits = _deduplicate(edits)
    after = {edit.start: edit.end for edit in edits}
    whole = Spans(nodes("whole"))
    rest = [node for node in nodes("rest") if not whole.contain(node)]
    rest += [node for node in nodes("indexed") if _is_next_statement(node, data)]
    rest += [node for node in nodes("restricted") if _would_break(node, data, after)]
    rest += _within(nodes("typed"), nodes("choice"))
    parted = [node for node in nodes("worded") if _is_two_lines(node, data)]
    rest += parted
    rest += _type_argument_starts(nodes("less"), nodes("more"), data)
    misread = [
        (node, _LINE_BREAK_MESSAGE) for node in parted if node.type == "interface_declaration"
    ]
    misread += [(node, _SIGNED_TEXT_MESSAGE) for node in _within(nodes("signed"), nodes("enum"))]
    return TypeErasure(edits, _first(rest), misread[0] if misread else None)


def _within(nodes: list[Node], others: list[Node]) -> list[Node]:
    stretches = Spans(others) if nodes and others else None
    return [node for node in nodes if stretches is not None and stretches.contain(node)]


def _by_position(nodes: list[Node]) -> list[Node]:
    return sorted(nodes, key=lambda node: node.start_byte)


def _first(nodes: list[Node]) -> Node | None:
    return next(iter(_by_position(nodes)), None)


def _cast(node: Node, *, ends: bool) -> Edit:
    """``x as T`` becomes ``x``. If a statement ends with it, the statement still ends there."""
    start = node.children[0].end_byte
    if not ends:
        return Edit(start, node.end_byte)
    word = node.children[1].start_byte
    return Edit(start, node.end_byte, " " * (word - start) + ";")


def _modifier(node: Node, *, first: bool) -> Edit:
    """``private [key]`` must not become an index into the field before it."""
    return Edit(node.start_byte, node.end_byte, ";" if first else "")


def _with_comma(node: Node, data: bytes) -> Edit:
    end = _after_space(data, node.end_byte)
    comma = data[end : end + 1] == b","
    return Edit(node.start_byte, end + 1 if comma else node.end_byte)


def _after_space(data: bytes, at: int) -> int:
    while data[at : at + 1].isspace():
        at += 1
    return at


def _arrow(node: Node, data: bytes) -> list[Edit]:
    """``=>`` must be on the line of the parenthesis before it, so the parenthesis moves."""
    kind, parameters = (node.child_by_field_name(name) for name in ("return_type", "parameters"))
    assert kind is not None
    assert parameters is not None
    if b"\n" not in data[parameters.end_byte : kind.end_byte]:
        return []
    return [
        Edit(parameters.end_byte - 1, parameters.end_byte),
        Edit(kind.start_byte, kind.end_byte, tail=")"),
    ]


def _is_next_statement(node: Node, data: bytes) -> bool:
    """``as T`` ends at the end of a line; the grammar continues with a bracket on the next one."""
    kind, bracket = node.children[:2]
    return b"\n" in data[kind.end_byte : bracket.start_byte]


def _is_two_lines(node: Node, data: bytes) -> bool:
    """``type`` alone on its line is a name, and a separate statement follows."""
    first, second = [child for child in node.children if child.type != "comment"][:2]
    return b"\n" in data[first.end_byte : second.start_byte]


def _type_argument_starts(less: list[Node], more: list[Node], data: bytes) -> list[Node]:
    """Comparison signs that may enclose types: ``f<A | B>(x)``. The text between them has balanced
    brackets, and arguments or a template follow."""
    less = _by_position(less) if more else []
    places = [node.end_byte for node in less]
    for end in more:
        if not _CALLS.match(data, end.end_byte):
            continue
        at = bisect_left(places, end.start_byte)
        for begin in less[max(0, at - _NESTED_MAX) : at]:
            between = data[begin.end_byte : end.start_byte]
            if len(between) <= _TYPES_BYTES_MAX and _is_whole(between):
                return [begin]
    return []


def _is_whole(text: bytes) -> bool:
    return all(text.count(left) == text.count(right) for left, right in _BRACKETS)


def _would_break(node: Node, data: bytes, after: dict[int, int]) -> bool:
    """Whether blanking leaves a line break where one ends the statement: after ``return``, or
    between ``async`` and its parameters. ``after`` says where a blank that begins there ends."""
    kinds = node.child_by_field_name("type_parameters")
    if kinds is not None:
        return b"\n" in data[kinds.start_byte : kinds.end_byte]
    if node.child_count < 2:
        return False
    at = begin = node.children[1].start_byte
    while at in after:
        at = _after_space(data, after[at])
    return b"\n" in data[begin:at]


def _deduplicate(edits: list[Edit]) -> list[Edit]:
    """Of two edits of the same position, the one that inserts text."""
    chosen: dict[tuple[int, int], Edit] = {}
    for edit in edits:
        place = edit.start, edit.end
        if place not in chosen or edit.head or edit.tail:
            chosen[place] = edit
    return list(chosen.values())


# --- merged blocks --------------------------------------------------------------------------------

# Finds references between the parts of an enum or namespace that is written in several parts.
#
# In TypeScript a part may use a name that another part exports. The transformer does not support
# this, so such a program is refused.


_BLOCKS = "[(internal_module) (module) (enum_declaration)] @block"
_NAMES = "[(identifier) (shorthand_property_identifier)] @name"
_PARTS_MAX = 50
_VARIABLES = frozenset(("lexical_declaration", "variable_declaration"))


class _Part(NamedTuple):
    path: bytes
    node: Node


def cross_part_reference(root: Node, data: bytes) -> tuple[Node, str] | None:
    """The first use of a name that another part exports, and the message for it."""
    blocks = ask(_BLOCKS, root).get("block", ())
    if len(blocks) < 2:
        return None
    parts: dict[bytes, list[_Part]] = {}
    for part in _parts(sorted(blocks, key=lambda node: node.start_byte), data):
        parts.setdefault(part.path, []).append(part)
    for path, same in parts.items():
        if len(same) > _PARTS_MAX:
            text = f"{path.decode()} is written in more than {_PARTS_MAX} parts"
            return same[_PARTS_MAX].node, text
        exports = [_declared(part.node, data, exported=True) for part in same]
        for at, part in enumerate(same):
            others = set().union(*exports[:at], *exports[at + 1 :])
            others -= _declared(part.node, data)
            if others and (found := _use(part.node, data, others)) is not None:
                name, whole = _text(found, data).decode(), part.path.decode()
                text = f"{name!r} is declared in another part of {whole}: write {whole}.{name}"
                return found, text
    return None


def _parts(blocks: list[Node], data: bytes) -> Iterator[_Part]:
    """Each block with its full name."""
    around: list[_Part] = []
    for node in blocks:
        name = node.child_by_field_name("name")
        if name is None or name.type == "string":
            continue
        while around and around[-1].node.end_byte <= node.start_byte:
            around.pop()
        prefix = around[-1].path + b"." if around else b""
        around.append(_Part(prefix + _text(name, data), node))
        yield around[-1]


def _declared(block: Node, data: bytes, *, exported: bool = False) -> set[bytes]:
    body = block.child_by_field_name("body")
    if body is None:
        return set()
    if block.type == "enum_declaration":
        members = (child.child_by_field_name("name") or child for child in body.named_children)
        return {_text(name, data).strip(b"\"'") for name in members}
    names: set[bytes] = set()
    for statement in body.named_children:
        if exported and statement.type != "export_statement":
            continue
        node = declaration_in(statement)
        if node.type in _VARIABLES:
            names |= {_text(name, data) for name in ask("(identifier) @name", node).get("name", ())}
        elif (found := node.child_by_field_name("name")) is not None:
            names.add(_text(found, data))
    return names


def _use(block: Node, data: bytes, names: set[bytes]) -> Node | None:
    body = block.child_by_field_name("body")
    found = ask(_NAMES, body).get("name", ()) if body is not None else ()
    uses = [node for node in found if _text(node, data) in names]
    return min(uses, key=lambda node: node.start_byte, default=None)


def _text(node: Node, data: bytes) -> bytes:
    return data[node.start_byte : node.end_byte]
