"""Only a process known to be gone is called dead."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import pytest

from rookery.ops.presence import Presence, is_dead, presence_here

ANNOUNCE = """
import sys, msgspec, rookery.ops.presence as presence
print(msgspec.json.encode(presence.presence_here()).decode(), flush=True)
sys.stdin.read()
"""


def test_a_process_is_dead_as_soon_as_it_has_ended_even_if_nobody_has_noticed():
    command = [sys.executable, "-c", ANNOUNCE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        announced = child.stdout.readline()
        assert not is_dead(announced)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert is_dead(announced)
    assert is_dead(announced)


def test_a_later_process_with_the_same_id_is_another_one():
    here = presence_here()
    assert not is_dead(msgspec.json.encode(here))
    assert is_dead(msgspec.json.encode(msgspec.structs.replace(here, born="1")))


@pytest.mark.parametrize("elsewhere", [{"host": "other"}, {"boot": "other/pid:[1]"}])
def test_of_processes_elsewhere_nothing_is_known(elsewhere: dict[str, str]):
    gone = Presence(**msgspec.structs.asdict(presence_here()) | {"born": "1"} | elsewhere)
    assert not is_dead(msgspec.json.encode(gone))


@pytest.mark.parametrize("presence", [b"", b"{}", b"\xff"])
def test_what_is_no_presence_is_not_dead(presence: bytes):
    assert not is_dead(presence)
