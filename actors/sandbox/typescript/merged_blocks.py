"""Finds references between the parts of an enum or namespace that is written in several parts.

In TypeScript a part may use a name that another part exports. The transformer does not support
this, so such a program is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rookery.actors.sandbox.typescript.module_statements import declaration_in
from rookery.actors.sandbox.typescript.syntax import Node, ask

__all__ = ["cross_part_reference"]

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
