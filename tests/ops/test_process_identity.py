"""Only a process known to be gone is called dead."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import pytest

from rookery.ops.process_identity import (
    ProcessIdentity,
    is_dead,
    is_token_dead,
    process_token,
    this_process,
)

EPOCH = "0123456789ab"
ANNOUNCE = """
import sys, msgspec, rookery.ops.process_identity as presence
print(msgspec.json.encode(presence.this_process()).decode(), presence.process_token(), flush=True)
sys.stdin.read()
"""


def test_a_process_is_dead_as_soon_as_it_has_ended_even_if_it_is_not_reaped():
    command = [sys.executable, "-c", ANNOUNCE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        announced, mark = child.stdout.readline().split()
        process = f"anna.{EPOCH}{mark.decode()}"
        assert not is_dead(announced)
        assert not is_token_dead(process)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert is_dead(announced)
        assert is_token_dead(process)
    assert is_dead(announced)
    assert is_token_dead(process)


def test_a_later_process_with_the_same_id_is_another_one():
    here = this_process()
    assert not is_dead(msgspec.json.encode(here))
    assert is_dead(msgspec.json.encode(msgspec.structs.replace(here, born="1")))


@pytest.mark.parametrize("elsewhere", [{"host": "other"}, {"boot": "other/pid:[1]"}])
def test_of_processes_elsewhere_nothing_is_known(elsewhere: dict[str, str]):
    gone = ProcessIdentity(**msgspec.structs.asdict(this_process()) | {"born": "1"} | elsewhere)
    assert not is_dead(msgspec.json.encode(gone))


@pytest.mark.parametrize("presence", [b"", b"{}", b"\xff"])
def test_what_is_no_presence_is_not_dead(presence: bytes):
    assert not is_dead(presence)


def test_a_token_differs_from_that_of_a_later_process_with_its_id_and_on_other_machines():
    mark = process_token()
    assert not is_token_dead(f"anna.{EPOCH}{mark}")
    assert is_token_dead(f"anna.{EPOCH}{mark[:-12]}{1:012x}")
    other = "0" if mark[0] != "0" else "1"
    assert not is_token_dead(f"anna.{EPOCH}{other}{mark[1:-12]}{1:012x}")


@pytest.mark.parametrize("process", ["", "anna", f"anna.{EPOCH}", f"anna.{EPOCH}{'x' * 30}"])
def test_of_a_process_without_a_mark_nothing_is_known(process: str):
    assert not is_token_dead(process)
