"""``rookery run`` while nodes start and stop: clients wait for the one result of an accepted run.

Every program waits at a gate that the test opens, so that its node stops during the run.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from rookery.bus.server.server import EmbeddedServer
from tests.ops.fixtures import CommandLine, Started

GATE = """
import asyncio
from pathlib import Path
from rookery.actors import tool

@tool(timeout_ms=60_000)
async def gate(name: str) -> str:
    while not Path(name).exists():
        await asyncio.sleep(0.05)
    return name
"""
TOOLS = ("--tools", "gates:gate")
IMPATIENT = (
    "import sys; from rookery.ops.cli import main;"
    " from rookery.ops.cli.rendering import run_output as p; p.ABSENCE_MAX_S = 0.5"
)
GIVES_UP = [sys.executable, "-c", IMPATIENT + "; sys.exit(main())"]


@pytest.fixture
def gated(tmp_path: Path) -> CommandLine:
    (tmp_path / "gates.py").write_text(GATE)
    return CommandLine(tmp_path)


def run_of(gate: str) -> tuple[str, ...]:
    limits = ("--timeout-ms", "60000", "--session", gate)
    return ("run", "-e", f"await gate({gate!r})", *limits)


def says(process: Started, text: str) -> str:
    """The next line on stderr with ``text`` in it, unless the command ends first."""
    assert process.stderr is not None
    lines: list[str] = []
    for line in process.stderr:
        if text in line:
            return line
        lines.append(line)
    raise AssertionError(lines)


def test_a_run_on_a_draining_node_is_awaited(gated: CommandLine):
    with gated.served(*TOOLS) as node, gated.started(*run_of("g")) as process:
        run_id = says(process, " waits for gate\n").split()[1]
        node.signal(signal.SIGTERM)
        progress = f"run {run_id} continues when a node replies; the last error: "
        says(process, f"{progress}no node of this realm answers")
        (gated.home / "g").touch()
        out, err = process.communicate()
        assert (process.returncode, out) == (0, '"g"\n'), err
        assert node.ended() == 0


def test_an_accepted_run_waits_for_the_node_to_return(gated: CommandLine):
    with gated.served(*TOOLS) as node, gated.started(*run_of("g")) as process:
        says(process, " waits for gate\n")
        node.kill()
        says(
            process,
            "continues when a node replies; the last error: the connection to the server is lost",
        )
        (gated.home / "g").touch()
        with gated.served(*TOOLS):
            out, err = process.communicate()
    assert (process.returncode, out) == (0, '"g"\n'), err


def test_an_interrupted_client_of_an_accepted_run_prints_how_to_find_it(gated: CommandLine):
    with gated.served(*TOOLS) as node, gated.started(*run_of("g"), command=GIVES_UP) as process:
        run_id = says(process, " waits for gate\n").split()[1]
        node.kill()
        out, err = process.communicate()
    assert (process.returncode, out) == (5, "")
    assert f"NO_ANSWER: run {run_id} was accepted and continues when a node replies" in err
    assert err.endswith(f"hint: rookery runs show {run_id}\n")
    with EmbeddedServer(gated.home / "store", admin=True):
        assert gated.rookery("runs", "show", run_id, "--json").json["run"]["status"] == "running"


def test_a_result_is_shown_before_its_node_finishes_what_others_have_begun_there(
    gated: CommandLine,
):
    with gated.started(*run_of("first"), *TOOLS) as first:
        says(first, " waits for gate\n")
        with gated.started(*run_of("second")) as second:
            run_id = says(second, " waits for gate\n").split()[1]
            (gated.home / "first").touch()
            assert first.stdout is not None
            assert first.stdout.readline() == '"first"\n'
            says(first, f"stopping: this process serves {run_id} to the end, for 20 s at most")
            (gated.home / "second").touch()
            out, err = second.communicate()
            assert (second.returncode, out) == (0, '"second"\n'), err
        assert first.wait() == 0
