"""A package's face offers what it names: to type checkers, to readers and at run time alike."""

from __future__ import annotations

import ast
from importlib import import_module

import pytest

from tests.laws.source import PRODUCT, ROOT, expect_none, modules, nodes

LAZY = [
    face.parent.relative_to(ROOT).as_posix()
    for folder in PRODUCT
    for face in sorted((ROOT / folder).rglob("__init__.py"))
    if "__getattr__ = lazy_names(" in face.read_text(encoding="utf-8")
]
"""Packages. Their faces are not parsed here: each process of the suite collects all tests."""


@pytest.mark.parametrize("folder", LAZY)
def test_a_lazy_face_loads_the_very_names_that_type_checkers_see(folder: str):
    package = import_module(f"rookery.{folder.replace('/', '.')}")
    face = ROOT / folder / "__init__.py"
    seen = dict(imported_for_types(ast.parse(face.read_text(encoding="utf-8"))))
    assert sorted(seen) == sorted(package.__all__)
    for name, home in seen.items():
        assert getattr(package, name) is getattr(import_module(home), name)


def test_no_module_imports_a_name_that_a_lazy_face_does_not_offer():
    """For type checkers a lazy face has any name, because it has a ``__getattr__``."""
    faces = {f"rookery.{folder.replace('/', '.')}": ROOT / folder for folder in LAZY}
    offered = {name: set(import_module(name).__all__) for name in faces}
    expect_none(
        [
            f"{module.path}:{node.lineno} imports {alias.name} from {node.module}"
            for module in modules(*PRODUCT, "tests")
            for node in nodes(module)
            if isinstance(node, ast.ImportFrom) and node.module in faces
            for alias in node.names
            if alias.name not in offered[node.module]
            and not (faces[node.module] / f"{alias.name}.py").exists()
            and not (faces[node.module] / alias.name).is_dir()
        ]
    )


def test_a_lazy_face_has_no_other_names():
    package = import_module("rookery.bus")
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        _ = package.no_such_name


def imported_for_types(face: ast.Module) -> list[tuple[str, str]]:
    """Each name below ``if TYPE_CHECKING``, and the module it is imported from."""
    blocks = [node for node in face.body if isinstance(node, ast.If)]
    return [
        (alias.name, node.module or "")
        for block in blocks
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
