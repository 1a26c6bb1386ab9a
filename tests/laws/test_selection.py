"""``make check`` runs what starts nothing, and a test that starts something fails there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.laws.source import ROOT

TESTS = """
import importlib
import pytest
import wasmtime
from contextlib import suppress
from pathlib import Path
from rookery.bus.server.server import EmbeddedServer
from tests.nodes import rookery_here

class Shop:
    def open(self, folder):
        return rookery_here(folder, "version")

@pytest.fixture
def server(tmp_path):
    with EmbeddedServer(tmp_path) as server:
        yield server

@pytest.fixture(params=["server", "tmp_path"])
def either(request):
    return request.getfixturevalue(request.param)

def test_nothing(tmp_path): ...
def test_a_server_of_a_fixture(server): ...
def test_a_command_of_a_class(tmp_path):
    Shop().open(tmp_path)
def test_an_engine_in_a_function():
    [wasmtime.Engine() for _ in range(1)]
def test_a_fixture_named_by_a_parameter(either): ...
@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.long_form)])
def test_a_campaign(size): ...
@pytest.mark.starts_something
def test_a_marked_one():
    importlib.import_module("subprocess").run(["true"])
def test_a_hidden_process():
    importlib.import_module("subprocess").run(["true"])
def test_a_hidden_process_whose_error_is_caught():
    with suppress(OSError):
        importlib.import_module("subprocess").run(["true"])
def test_a_hidden_engine():
    importlib.import_module("wasmtime").Engine()
"""


def test_a_quick_run_leaves_out_what_starts_something_and_fails_what_hides_it(tmp_path: Path):
    file = tmp_path / "test_starts.py"
    file.write_text(TESTS, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--quick"]
    command += ["-p", "tests.conftest", "-p", "no:cacheprovider", "-p", "no:xdist", "-rA"]
    command += [str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    ended = set(re.findall(r"^(PASSED|FAILED) \S*::(\S+)", done.stdout, re.MULTILINE))
    assert ended == {
        ("PASSED", "test_nothing"),
        ("PASSED", "test_a_fixture_named_by_a_parameter[tmp_path]"),
        ("PASSED", "test_a_campaign[1]"),
        ("FAILED", "test_a_hidden_process"),
        ("FAILED", "test_a_hidden_process_whose_error_is_caught"),
        ("FAILED", "test_a_hidden_engine"),
    }
    assert "`make check` starts the process ['true']: mark the test" in done.stdout
