"""A package's face offers what it names: to type checkers, to readers and at run time alike."""

from __future__ import annotations

import ast
from importlib import import_module

import pytest

from tests.laws.source import PRODUCT, Module, modules

LAZY = [
    module
    for module in modules(*PRODUCT)
    if module.is_face and "__getattr__ = lazy_names(" in module.text
]


@pytest.mark.parametrize("face", LAZY, ids=lambda face: face.package)
def test_a_lazy_face_loads_the_very_names_that_type_checkers_see(face: Module):
    package = import_module(f"rookery.{face.package.replace('/', '.')}")
    seen = dict(imported_for_types(face))
    assert sorted(seen) == sorted(package.__all__)
    for name, home in seen.items():
        assert getattr(package, name) is getattr(import_module(home), name)


def test_a_lazy_face_has_no_other_names():
    package = import_module("rookery.bus")
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        _ = package.no_such_name


def imported_for_types(face: Module) -> list[tuple[str, str]]:
    """Each name below ``if TYPE_CHECKING``, and the module it is imported from."""
    blocks = [node for node in face.tree.body if isinstance(node, ast.If)]
    return [
        (alias.name, node.module or "")
        for block in blocks
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
