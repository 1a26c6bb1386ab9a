"""A failpoint kills the process at the pass it names; an unknown one is refused at once."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from rookery.actors.kernel.executors.failpoints import FAILPOINTS, Failpoints
from rookery.schemas.errors import Refused

PROGRAM = """
import sys
from rookery.actors.kernel.executors.failpoints import Failpoints
failpoints = Failpoints(sys.argv[1])
failpoints.hit("decided")
failpoints.hit("acked")
failpoints.arm()
for number in range(5):
    print(number, flush=True)
    failpoints.hit("decided")
    failpoints.hit("acked")
"""


def passed(spec: str) -> tuple[int, list[str]]:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, spec], capture_output=True, text=True, check=False
    )
    return ended.returncode, ended.stdout.split()


def test_a_failpoint_kills_at_the_pass_it_names_counted_from_when_it_is_armed():
    assert passed("decided@3") == (-signal.SIGKILL, ["0", "1", "2"])


def test_without_a_number_it_kills_at_the_first():
    assert passed("acked") == (-signal.SIGKILL, ["0"])


def test_nothing_is_armed_by_default():
    failpoints = Failpoints()
    failpoints.arm()
    for name in FAILPOINTS:
        failpoints.hit(name)


@pytest.mark.parametrize(
    "spec", ["never", "decided@", "decided@0", "decided@x", "decided@-1", "@3"]
)
def test_a_wrong_failpoint_is_refused_with_the_right_ones(spec: str):
    with pytest.raises(Refused) as refused:
        Failpoints(spec)
    assert refused.value.code == "CONFIG_INVALID"
    assert "append_sent" in refused.value.hint
