"""Packages of pure Python are part of a guest's build; what needs compiled code is refused."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pytest

from rookery.actors.sandbox import Sandbox
from rookery.actors.sandbox.python.build import GuestCache, cache_folder, source_key
from rookery.actors.sandbox.python.file_cache import FileCache
from rookery.actors.sandbox.python.packages import (
    Wheels,
    build_variables,
    normal_requirements,
    unpack,
)
from rookery.actors.sandbox.python.python_guest import PythonGuest
from rookery.actors.sandbox.runtime.wasm import Engine
from rookery.schemas.errors import Failed, Refused
from tests.sandbox.python.package_wheels import GREETER, write_wheel
from tests.sandbox.session_fixture import KEY, TOOLS, Stage

COMPILED = "cp314-cp314-manylinux2014_x86_64"
SOURCE = """
import bz2
from importlib.metadata import version
import pkgutil

def greet(name):
    return pkgutil.get_data(__name__, "greeting.txt").decode().format(name=name)

__version__ = version("rookery-test-greeter")
"""
ENTRY_POINTS = "[rookery.test]\nhello = rookery_greeter:greet\n"


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which pip looks for wheels; it has no index."""
    folder = tmp_path / "links"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def wheels(tmp_path: Path, *requirements: str) -> list[Path]:
    return Wheels(tmp_path / "cache" / "key", FileCache(tmp_path / "cache"), requirements).paths()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()


def test_a_list_of_packages_has_one_form_and_names_a_build():
    listed = normal_requirements(["PyYAML", " jinja2 >= 3, < 4", "pyyaml"])
    assert listed == ("jinja2>=3,<4", "pyyaml")
    keys = [source_key(stub_wasi=True, packages=names) for names in ((), listed, listed[:1])]
    assert len(set(keys)) == 3


@pytest.mark.parametrize(
    "wrong", ["-r/etc/passwd", "./a.whl", "git+https://x", "a @ https://x", "a b;"]
)
def test_anything_but_a_name_with_versions_is_refused(wrong: str):
    with pytest.raises(Refused) as refused:
        normal_requirements([wrong])
    assert refused.value.code == "CONFIG_INVALID"
    assert "sandbox.packages" in refused.value.message


def environments_of_children(work: Callable[[], object]) -> dict[str, set[str]]:
    """By name, the values of the variables of every process that ``work`` started."""
    found: dict[str, set[str]] = {}
    working = Thread(target=work)
    working.start()
    while working.is_alive():
        for task in Path("/proc/self/task").glob("*/children"):
            with suppress(OSError):
                for child in task.read_text().split():
                    if b"pip" in Path("/proc", child, "cmdline").read_bytes():
                        for line in Path("/proc", child, "environ").read_text().split("\0"):
                            name, _, value = line.partition("=")
                            found.setdefault(name, set()).add(value)
    return found


def test_a_process_of_a_build_gets_no_secret_of_the_node(
    tmp_path: Path, links: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("MAIL_TOKEN", "ROOKERY_SECRET", "PYTHONPATH"):
        monkeypatch.setenv(name, "canary")
    write_wheel(links, "first", {"first.py": ""})
    found = environments_of_children(lambda: wheels(tmp_path, "first"))
    assert found["PIP_FIND_LINKS"] == {str(links)}, "pip has its own settings"
    assert found.keys() & {"MAIL_TOKEN", "ROOKERY_SECRET", "PYTHONPATH"} == set()
    assert "PIP_FIND_LINKS" not in build_variables(os.environ), "the compiler needs none of pip's"
    assert build_variables(os.environ).keys() <= found.keys()


def test_a_list_is_resolved_once_with_what_it_needs(tmp_path: Path, links: Path):
    write_wheel(links, "first", {"first.py": "import second"}, needs="second")
    write_wheel(links, "second", {"second.py": ""})
    found = wheels(tmp_path, "first")
    assert [path.name.partition("-")[0] for path in found] == ["first", "second"]
    (links / "first-1.0-py3-none-any.whl").unlink()
    assert wheels(tmp_path, "first") == found


def test_a_damaged_wheel_is_fetched_again(tmp_path: Path, links: Path):
    write_wheel(links, "first", {"first.py": ""})
    (path,) = wheels(tmp_path, "first")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    (again,) = wheels(tmp_path, "first")
    assert again.read_bytes() == whole


@pytest.mark.usefixtures("links")
def test_a_package_that_pip_does_not_find_fails_the_build_in_its_words(tmp_path: Path):
    with pytest.raises(Failed) as failed:
        wheels(tmp_path, "no-such-package")
    assert failed.value.code == "GUEST_BUILD_FAILED"
    assert "no-such-package" in failed.value.message
    assert "rookery guest build" in failed.value.hint


def test_a_package_that_needs_compiled_code_is_refused(tmp_path: Path):
    core = write_wheel(
        tmp_path, "core", {"core/__init__.py": "from ._core import run", "core/_core.abi3.so": "x"},
        tag=COMPILED,
    )  # fmt: skip
    user = write_wheel(tmp_path, "user", {"user/__init__.py": "import core\n"})
    with pytest.raises(Failed) as failed:
        unpack([core, user], tmp_path / "unpacked")
    assert "needs compiled code (core._core)" in failed.value.message


def test_a_module_that_this_python_cannot_parse_does_not_hide_the_refusal(tmp_path: Path):
    files = {"core/__init__.py": "from . import _core", "core/_core.so": "x"}
    files |= {
        "core/newer.py": "from core import _core\nthis is not Python",
        "core/odd.py": "_core\0",
    }
    with pytest.raises(Failed) as failed:
        unpack([write_wheel(tmp_path, "core", files, tag=COMPILED)], tmp_path / "unpacked")
    assert "needs compiled code (core._core)" in failed.value.message


def test_compiled_code_that_a_package_can_do_without_is_left_out(tmp_path: Path):
    quick = "try:\n    from ._quick import f\nexcept ImportError:\n    def f(): return 1\n"
    late = "def g():\n    from . import _quick\n"
    files = {"fast/__init__.py": f"{quick}from . import late\n", "fast/late.py": late}
    files |= {"fast/c.py": "from fast._quick import f", "fast/_quick.so": "x"}
    wheel = write_wheel(tmp_path, "fast", files, tag=COMPILED)
    (package,) = unpack([wheel], tmp_path / "unpacked")
    assert (package.name, package.version, package.imports) == ("fast", "1.0", ["fast"])
    assert sorted(p.name for p in (tmp_path / "unpacked/fast").iterdir()) == [
        "__init__.py",
        "c.py",
        "late.py",
    ]


def test_a_wheel_writes_nothing_outside_its_folder(tmp_path: Path):
    wheel = write_wheel(tmp_path, "evil", {"evil.py": "", "../out.py": "x", "/abs.py": "x"})
    unpack([wheel], tmp_path / "unpacked")
    assert not (tmp_path / "out.py").exists()
    assert {path.name for path in (tmp_path / "unpacked").iterdir()} == {
        "evil.py",
        "evil-1.0.dist-info",
    }


@pytest.fixture(scope="module")
def with_package(tmp_path_factory: pytest.TempPathFactory, engine: Engine) -> Iterator[Sandbox]:
    """A sandbox whose guest has a package; built once for the user, as all guests are."""
    links = tmp_path_factory.mktemp("links")
    files = {"rookery_greeter/__init__.py": SOURCE, "rookery_greeter/greeting.txt": "Hi {name}"}
    files["rookery_test_greeter-1.0.dist-info/entry_points.txt"] = ENTRY_POINTS
    write_wheel(links, GREETER, files)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(links))
        cache = GuestCache(cache_folder(os.environ), packages=[GREETER])
        guest = PythonGuest(engine, cache)
    with Sandbox(engine, [guest], KEY) as sandbox:
        yield sandbox


def test_a_program_uses_a_package_across_snapshots(with_package: Sandbox):
    stage = Stage(with_package, "packages")
    code = "from rookery_greeter import greet, __version__\ngreet('Ann'), __version__"
    assert stage.value(code) == ["Hi Ann", "1.0"]
    taken = with_package.snapshot("packages").data
    stage.end()
    with_package.restore(taken, tools=TOOLS)
    assert stage.value("greet('Bob')") == "Hi Bob"
    found = "from importlib.metadata import entry_points\n"
    found += "[point.load()('x') for point in entry_points(group='rookery.test')]"
    assert stage.value(found) == ["Hi x"]
    stage.end()


def test_a_program_can_ask_for_the_packages_and_a_refusal_names_them(with_package: Sandbox):
    stage = Stage(with_package, "asking")
    listed = [{"name": GREETER, "version": "1.0", "imports": ["rookery_greeter"]}]
    assert stage.value("current_policy()['packages']") == listed
    refused = stage.run("import numpy")
    assert refused.error is not None
    assert "packages that are here: rookery_greeter" in (refused.error.hint or "")
    stage.end()


def test_a_guest_with_packages_is_another_build(with_package: Sandbox, sandbox: Sandbox):
    assert with_package.builds != sandbox.builds
