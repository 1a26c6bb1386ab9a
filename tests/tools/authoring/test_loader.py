"""``module:object`` loads tools, or the error says what is missing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rookery.actors.tools import ToolRegistry
from rookery.schemas.errors import Refused

SOURCE = '''
from rookery.actors import tool
from rookery.actors.tools import ToolRegistry

@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b

@tool
def sub(a: int, b: int) -> int:
    return a - b

def plain():
    pass

REGISTRY = ToolRegistry.of(add, sub)
LIST = [add, ToolRegistry.of(sub)]
TWICE = [add, ToolRegistry.of(add)]
MIXED = [add, plain]

class Nested:
    inside = (sub,)
'''


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current directory with modules, which are unloaded afterwards."""
    (tmp_path / "my_tools.py").write_text(SOURCE)
    (tmp_path / "my_broken.py").write_text("1 / 0")
    (tmp_path / "my_needy.py").write_text("import no_such_library")
    (tmp_path / "my_refused.py").write_text("from rookery.actors import tool\ntool(print)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("my_")]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("place", "names"),
    [
        ("my_tools:REGISTRY", ["add", "sub"]),
        ("my_tools:LIST", ["add", "sub"]),
        ("my_tools:add", ["add"]),
        ("my_tools:Nested.inside", ["sub"]),
    ],
)
def test_a_registry_a_tool_or_a_list_of_these_is_loaded(place: str, names: list[str]):
    assert ToolRegistry.load(place).names() == names


def test_the_current_directory_is_searched_once(here: Path):
    ToolRegistry.load("my_tools:add")
    ToolRegistry.load("my_tools:sub")
    assert sys.path.count(str(here)) == 1


@pytest.mark.parametrize(
    ("place", "error"),
    [
        ("my_tools", "INVALID_ARGUMENT: 'my_tools' is not MODULE:OBJECT (such as "),
        (":add", "INVALID_ARGUMENT: ':add' is not MODULE:OBJECT"),
        ("my_tools:", "INVALID_ARGUMENT: 'my_tools:' is not MODULE:OBJECT"),
        ("my_absent:x", "INVALID_ARGUMENT: 'my_absent:x' names no module: No module named"),
        ("my_tools.deeper:x", "INVALID_ARGUMENT: 'my_tools.deeper:x' names no module: "),
        ("my_tools:absent", "INVALID_ARGUMENT: 'my_tools:absent' names nothing: module 'my_tools'"),
        ("my_tools:add.b.c", "INVALID_ARGUMENT: 'my_tools:add.b.c' names nothing: "),
        ("my_tools:plain", "INVALID_ARGUMENT: 'my_tools:plain': plain is no tool (decorate"),
        ("my_tools:MIXED", "INVALID_ARGUMENT: 'my_tools:MIXED': plain is no tool"),
        ("my_tools:TWICE", "INVALID_TOOL_NAME: 'my_tools:TWICE': two tools are called add"),
        ("my_broken:x", "INVALID_ARGUMENT: 'my_broken:x' cannot be imported: ZeroDivisionError: "),
        ("my_needy:x", "INVALID_ARGUMENT: 'my_needy:x' cannot be imported: ModuleNotFoundError"),
        ("my_refused:x", "INVALID_ARGUMENT: 'my_refused:x': @tool is for functions"),
        ("..x:y", "INVALID_ARGUMENT: '..x:y' cannot be imported: TypeError"),
    ],
)
def test_the_error_names_what_is_missing(place: str, error: str):
    with pytest.raises(Refused) as caught:
        ToolRegistry.load(place)
    assert str(caught.value).startswith(error)


def test_the_example_of_files_and_the_web_offers_only_the_listed_tools():
    registry = ToolRegistry.load("rookery.ops.examples.workspace:registry")
    files, web = ["read_text", "list_dir", "write_text"], ["fetch_text", "fetch_json", "http_get"]
    assert {tool.capability.name for tool in registry} == {*files, *web}
