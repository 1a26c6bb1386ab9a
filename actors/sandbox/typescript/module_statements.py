"""Imports and exports of a program, which is always a single file.

An export becomes a declaration, and an import used only for types is removed. An import of values
binds the names of one of node's modules that the prelude has; any other is refused. As in the
compiler, an import counts as one of values if a value position uses its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from typing import Final, NamedTuple

from rookery.actors.sandbox.typescript.syntax import Edit, Node, Spans, ask

__all__ = [
    "MODULES",
    "NO_MODULES",
    "ModuleStatements",
    "are_elidable",
    "declaration_in",
    "exported_value",
    "module_statements",
    "requested",
]

MODULES: Final = frozenset(
    f"{prefix}{name}"
    for prefix in ("", "node:")
    for name in ("buffer", "fs", "fs/promises", "path", "path/posix")
)
"""The modules that the prelude has."""
NO_MODULES: Final[Set[str]] = frozenset()

_LATER = "(call_expression function: (import) arguments: (arguments . (string))) @later"
_USES = "[(identifier) (shorthand_property_identifier)] @use"
_IMPORT: Final = "__import"
"""The global of the prelude that has the modules."""
_STATEMENTS = frozenset(("export_statement", "import_statement"))
_TYPES = frozenset(("import_statement", "interface_declaration", "type_alias_declaration"))
"""Statements that declare names of types; other imports of values have been refused before."""


class ModuleStatements(NamedTuple):
    edits: list[Edit]
    wanted: list[Node]
    """Statements that need values of another module."""


def module_statements(
    root: Node,
    data: bytes,
    types: Iterable[Edit] | None = None,
    *,
    offered: Set[str] = NO_MODULES,
) -> ModuleStatements:
    """Edits for the imports and exports. Names within ``types``, which are blanked, do not count as
    used. Without ``types`` the source is output of the transformer, which converts ``export =``.
    ``offered``: the modules that the program may import."""
    found = ModuleStatements(_later_imports(root, data, offered), [])
    statements = [node for node in root.children if node.type in _STATEMENTS]
    imports = [node for node in statements if node.type == "import_statement"]
    exports = [node for node in statements if node.type == "export_statement"]
    if imports:
        used = _used(root, data, Spans.between((edit.start, edit.end) for edit in types or ()))
        for node in imports:
            _import(node, data, used, found, offered)
    types_only = set()
    if any(map(exported_value, exports)):
        types_only = _named_types(root, data, offered)
    for node in exports:
        _export(node, data, types_only, found)
    if types is None:
        found.wanted.extend(_assignments(root, data))
    return found


def are_elidable(wanted: list[Node]) -> bool:
    """Whether all these are imports of names, whose uses may refer to shadowing declarations."""
    return bool(wanted) and all(
        node.type == "import_statement" and any(_imported(node)) for node in wanted
    )


def declaration_in(node: Node) -> Node:
    """The declaration in a top-level statement, exported or not."""
    if node.type != "export_statement":
        return node
    return node.child_by_field_name("declaration") or node


def exported_value(node: Node) -> Node | None:
    """The expression in ``export default 1`` and ``export = 1``."""
    if node.type != "export_statement":
        return None
    if (value := node.child_by_field_name("value")) is not None:
        return value
    if _child(node, "=") is None:
        return None
    return next(child for child in node.named_children if child.type != "comment")


def _assignments(root: Node, data: bytes) -> list[Node]:
    return [node for node in root.children if _text(node, data).startswith(b"module.exports = ")]


def _used(root: Node, data: bytes, types: Spans) -> set[bytes]:
    used: set[bytes] = set()
    for statement in root.children:
        if statement.type == "import_statement" or _is_type_export(statement):
            continue
        nodes = ask(_USES, statement).get("use", ())
        used |= {_text(node, data) for node in nodes if not types.contain(node)}
    return used


def _is_type_export(node: Node) -> bool:
    return node.type == "export_statement" and _child(node, "type") is not None


def requested(call: Node, data: bytes, offered: Set[str]) -> str | None:
    """The module that a call requests, if a literal names one that is offered."""
    given = call.child_by_field_name("arguments")
    first = given.named_children[0] if given is not None and given.named_children else None
    return None if first is None else _offered_module(first, data, offered)


def _offered_module(name: Node, data: bytes, offered: Set[str]) -> str | None:
    text = _text(name, data)[1:-1].decode(errors="replace")
    return text if name.type == "string" and text in offered else None


def _later_imports(root: Node, data: bytes, offered: Set[str]) -> list[Edit]:
    """Edits for calls of ``import`` with the name of a module."""
    if not offered or b"import" not in data:
        return []
    calls = [call for call in ask(_LATER, root).get("later", ()) if requested(call, data, offered)]
    words = [call.children[0] for call in calls]
    return [Edit(word.start_byte, word.end_byte, f"{_IMPORT}.later") for word in words]


def _import(
    node: Node, data: bytes, used: set[bytes], found: ModuleStatements, offered: Set[str]
) -> None:
    is_type = _child(node, "type") is not None or _child(node, "typeof") is not None
    has_names = any(_child(node, f"import_{kind}clause") for kind in ("", "require_"))
    names = {_text(name, data) for name, _ in _imported(node)}
    if is_type or (has_names and used.isdisjoint(names)):
        found.edits.append(Edit(node.start_byte, node.end_byte, ";"))
    elif (source := _source_of(node)) and (name := _offered_module(source, data, offered)):
        found.edits.append(Edit(node.start_byte, node.end_byte, _bindings(node, name, data)))
    else:
        found.wanted.append(node)


def _source_of(node: Node) -> Node | None:
    """The string with the name of the module."""
    clause = _child(node, "import_require_clause") or node
    return clause.child_by_field_name("source")


def _bindings(node: Node, module: str, data: bytes) -> str:
    """Variables with the values that a statement imports."""
    names = [
        f"{_text(local, data).decode()}={_IMPORT}({module!r},{_plain(name, data)!r})"
        for local, name in _imported(node)
    ]
    return f"var {','.join(names)};" if names else ";"


def _plain(name: Node | str, data: bytes) -> str:
    return name if isinstance(name, str) else _text(name, data).decode().strip("'\"")


def _imported(node: Node, *, types: bool = False) -> Iterator[tuple[Node, Node | str]]:
    """The imported names that may be values, each with its name in the module: ``*`` for all of it;
    with ``types`` those of types, too."""
    for clause in node.named_children:
        if clause.type == "import_require_clause":
            yield clause.named_children[0], "default"
        for part in clause.named_children if clause.type == "import_clause" else ():
            if part.type == "identifier":
                yield part, "default"
            elif part.type == "namespace_import":
                yield part.named_children[0], "*"
            else:
                for name in part.named_children:
                    if name.type == "import_specifier" and (types or not _is_typed(name)):
                        own = name.named_children[0]
                        yield name.child_by_field_name("alias") or own, own


def _is_typed(specifier: Node) -> bool:
    return specifier.children[0].type in ("type", "typeof")


def _export(node: Node, data: bytes, types: set[bytes], found: ModuleStatements) -> None:
    declaration = node.child_by_field_name("declaration")
    if node.child_by_field_name("source") is not None:
        if _is_type_export(node) or _names_no_values(node):
            found.edits.append(Edit(node.start_byte, node.end_byte, ";"))
        else:
            found.wanted.append(node)
    elif declaration is not None:
        for word in ("export", "default"):
            if (keyword := _child(node, word)) is not None:
                found.edits.append(Edit(keyword.start_byte, keyword.end_byte))
    elif (value := exported_value(node)) is not None and _text(value, data) not in types:
        keyword = _child(node, "default") or _child(node, "=")
        assert keyword is not None
        found.edits.append(Edit(node.start_byte, keyword.end_byte, ";", "("))
        found.edits.append(Edit(value.end_byte, value.end_byte, ")"))
    else:  # ``export {a, b}`` or ``export * as a``.
        found.edits.append(Edit(node.start_byte, node.end_byte, ";"))


def _child(node: Node, kind: str) -> Node | None:
    return next((child for child in node.children if child.type == kind), None)


def _names_no_values(node: Node) -> bool:
    """``export { type A }``, and ``export {}``; not ``export *``."""
    clause = _child(node, "export_clause")
    specifiers = [] if clause is None else clause.named_children
    return clause is not None and all(
        _is_typed(name) for name in specifiers if name.type == "export_specifier"
    )


def _named_types(root: Node, data: bytes, offered: Set[str]) -> set[bytes]:
    """The names that the program declares as types only."""
    kinds: dict[bytes, set[str]] = {}
    for statement in root.named_children:
        node = declaration_in(statement)
        if (source := _source_of(node)) and _offered_module(source, data, offered):
            continue
        for name in _declared(node):
            kinds.setdefault(_text(name, data), set()).add(node.type)
    return {name for name, made_by in kinds.items() if made_by <= _TYPES}


def _declared(node: Node) -> Iterator[Node]:
    """The names that a statement declares, of values and of types."""
    if node.type == "import_statement":
        yield from (name for name, _ in _imported(node, types=True))
    elif node.type in ("lexical_declaration", "variable_declaration"):
        yield from ask("(identifier) @name", node).get("name", ())
    elif (found := node.child_by_field_name("name")) is not None:
        yield found


def _text(node: Node, data: bytes) -> bytes:
    return data[node.start_byte : node.end_byte]
