"""The comparison with peers: what is chosen, what is skipped and why, what is left behind.

No figure is looked at, and no peer is installed: Rookery and a baseline are enough to measure.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rookery.ops.bench.peers import PARTS, Comparison, PeerRow, choose, compare_peers
from rookery.ops.bench.peers.catalogue import PEERS
from rookery.ops.bench.peers.environment import Environment, PeerUnavailable, Program, family_of
from rookery.ops.cli import main
from rookery.schemas.errors import Refused

ALWAYS = ["rookery", "js.publish", "responder"]
READY = "print('{}', flush=True)"


def names(peers: str | None, parts: str | None) -> list[str]:
    return [peer.name for peer in choose(peers, parts)[0]]


def test_a_family_is_all_its_peers_and_baselines_are_always_measured():
    assert names("dbos, restate", "A") == [*ALWAYS, "restate", "dbos-sqlite", "dbos-postgres"]
    assert names("langgraph-sqlite", "b,c") == [*ALWAYS[:1], "responder", "langgraph-sqlite"]
    assert names(None, None) == list(PEERS)
    assert choose(None, None)[1] == "".join(PARTS)
    assert choose("monty", "E")[1] == "E"


@pytest.mark.parametrize(
    ("peers", "parts", "message"),
    [("nonesuch", None, "no peer 'nonesuch'"), ("dbos-", "A", "no peer"), (None, "A,Z", "no part")],
)
def test_an_unknown_peer_or_part_is_refused(peers: str | None, parts: str | None, message: str):
    with pytest.raises(Refused, match=message) as refused:
        choose(peers, parts)
    assert refused.value.hint.startswith("some of ")


def test_the_command_refuses_what_it_does_not_know(capfd: pytest.CaptureFixture[str]):
    assert main(["bench", "peers", "--only", "A,F"]) == 2
    assert "no part 'F'" in capfd.readouterr().err
    assert main(["bench", "peers", "--peers", "restate", "--rounds", "0"]) == 2


def test_a_peer_that_cannot_be_installed_is_skipped_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    command = [sys.executable, "-m", "venv", "--without-pip"]
    subprocess.run([*command, tmp_path / "rookery" / "peers" / "venv"], check=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    peers = [PEERS["restate"], PEERS["eventsourcing"]]
    compared = compare_peers(peers, "A", rounds=1)
    assert compared.rows == ()
    assert "node and npm are not installed" in compared.skipped["restate"]
    assert "No module named pip" in compared.skipped["eventsourcing"]


def test_an_interpreter_that_does_not_start_is_a_reason(tmp_path: Path):
    environment = Environment(tmp_path)
    environment.python.parent.mkdir(parents=True)
    environment.python.write_text("#!/nowhere\n")
    environment.python.chmod(0o755)
    with pytest.raises(PeerUnavailable, match="No such file"):
        environment.provide_python(["dbos"])


def test_a_program_that_ends_or_fails_says_why(tmp_path: Path):
    log = tmp_path / "log"
    with pytest.raises(PeerUnavailable, match="no licence"):
        Program([sys.executable, "-c", "raise SystemExit('no licence')"], log)
    failing = f'{READY}\ninput()\nprint(\'{{"error": "disk full"}}\', flush=True)\ninput()'
    program = Program([sys.executable, "-c", failing], log)
    with pytest.raises(PeerUnavailable, match="A: disk full"):
        program.request("A")
    program.stop()
    with pytest.raises(PeerUnavailable, match="does not start"):
        Program([tmp_path / "nothing"], log)


def test_a_kill_ends_the_whole_family(tmp_path: Path):
    code = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
        f"{READY}\ninput()"
    )
    program = Program([sys.executable, "-c", code], tmp_path / "log")
    family = family_of(program.process.pid)
    assert len(family) == 2
    program.kill()
    for pid in family:
        state = Path(f"/proc/{pid}/stat")
        assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


def test_figures_are_ratios_to_those_of_rookery():
    peers = [PEERS["rookery"], PEERS["js.publish"]]
    compared = compare_peers(peers, "A", rounds=1, share=0.001)
    assert compared.skipped == {}
    rows = {(row.peer, row.name): row for row in compared.rows}
    assert {name for peer, name in rows if peer == "rookery"} == {
        "A, p50 at 1",
        "A, p99 at 1",
        "A, a second at 64",
    }
    for (peer, name), row in rows.items():
        assert row.value > 0
        expected = None if peer == "rookery" else row.value / rows["rookery", name].value
        assert row.ratio == expected


def test_the_history_has_the_ratios_of_rookery_to_each_peer():
    def row(peer: str, unit: str, ratio: float | None) -> PeerRow:
        return PeerRow(peer=peer, part="A", name="A, x", value=1, unit=unit, ratio=ratio, load=0.1)

    rows = (row("rookery", "ms", None), row("restate", "ms", 0.5), row("dbos", "/s", 4))
    compared = Comparison(rows=rows, versions={}, skipped={}, rounds=1, machine={})
    assert [(r.name, r.to, r.ratio, r.higher_is_better) for r in compared.record_rows()] == [
        ("peers, A, x", "restate", 2, False),
        ("peers, A, x", "dbos", 0.25, True),
    ]
