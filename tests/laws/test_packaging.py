"""What is built is what is here: every package, its type marker and its generated documents."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from rookery.schemas.export import CONTRACT_VERSION
from tests.laws.source import PRODUCT, ROOT, files

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
BUILD = "from setuptools.build_meta import build_wheel; build_wheel('wheel')"


def test_pyproject_lists_every_package():
    folders = {
        path.parent.relative_to(ROOT).as_posix()
        for path in files()
        if path.name == "__init__.py" and path.relative_to(ROOT).parts[0] in PRODUCT
    }
    listed = PROJECT["tool"]["setuptools"]["packages"]
    assert sorted(listed) == sorted("rookery." + name.replace("/", ".") for name in folders)


def test_the_contract_has_the_version_of_the_project():
    assert PROJECT["project"]["version"] == CONTRACT_VERSION


def test_constraints_pin_every_declared_dependency_and_nothing_else_is_in_them():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all(pin.count("==") == 1 and " " not in pin for pin in pins)
    pinned = {_normal(pin.partition("==")[0]) for pin in pins}
    project = PROJECT["project"]
    declared = project["dependencies"] + project["optional-dependencies"]["dev"]
    declared += PROJECT["build-system"]["requires"]
    assert {_normal(name) for name in declared} <= pinned


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names in a wheel built from a copy of the checkout, without a network."""
    copy = tmp_path_factory.mktemp("checkout")
    ignored = shutil.ignore_patterns("__pycache__")
    for name in PRODUCT:
        shutil.copytree(ROOT / name, copy / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    subprocess.run([sys.executable, "-c", BUILD], cwd=copy, check=True, capture_output=True)
    (built,) = (copy / "wheel").iterdir()
    with zipfile.ZipFile(built) as archive:
        return set(archive.namelist())


def test_a_wheel_holds_every_module_and_data_file(wheel: set[str]):
    for folder in PRODUCT:
        here = [path for path in files() if path.relative_to(ROOT).parts[0] == folder]
        shipped = [path for path in here if path.suffix in (".py", ".json", ".typed", ".wit")]
        assert {f"rookery/{_relative(path)}" for path in shipped} <= wheel
        assert f"rookery/{folder}/py.typed" in wheel


def test_a_wheel_puts_nothing_but_rookery_into_an_environment(wheel: set[str]):
    tops = {name.partition("/")[0].partition("-")[0] for name in wheel}
    assert tops == {"rookery"}
    assert any(name.endswith("licenses/LICENSE") for name in wheel)


def _relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _normal(requirement: str) -> str:
    """``nats-py`` of ``nats_py>=2.16,<2.17``."""
    name = requirement.partition(";")[0]
    for sign in ("<", ">", "=", "!", "~", "["):
        name = name.partition(sign)[0]
    return name.strip().lower().replace("_", "-")
