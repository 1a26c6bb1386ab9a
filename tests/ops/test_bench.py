"""Benches in their short form: they run, they audit themselves, and their rows are well formed.

No figure is looked at: what a bench measures here, on a busy machine, means nothing.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Literal

import pytest

from rookery.actors.sandbox import Sandbox
from rookery.ops import bench
from rookery.ops.bench.harness.bench_nodes import COMMAND, BenchDecider
from rookery.ops.bench.harness.harness import Harness
from rookery.ops.bench.harness.journal_audit import JournalAudit
from rookery.ops.bench.harness.report import measure
from rookery.ops.bench.harness.result_rows import Figure, ResultRow, Sync, result_rows
from rookery.ops.bench.history.history import read_history
from rookery.ops.bench.loads.language_programs import PROGRAMS
from rookery.ops.bench.loads.rebuild_load import MESSAGES, histories, next_run, next_turn, sessions
from rookery.ops.bench.loads.sandbox_load import BenchSession, open_guests
from rookery.schemas.errors import Failed
from rookery.schemas.run import Language
from tests.ops.forked_benches import fork_process

SHARE = 0.002
COLD_LISTS = ("views", "default")
"""Lines that only a server which does not sync can fill a journal for in good time."""
FIELDS = set(ResultRow.__struct_fields__)


@pytest.mark.parametrize(("name", "sync"), [*((n, "always") for n in bench.BENCHES), COLD_LISTS])
def test_a_bench_yields_a_row_for_each_of_its_lines(name: str, sync: Sync):
    rows = measure(name, sync, rounds=1, share=SHARE, start=fork_process)
    assert rows
    assert len({row.name for row in rows}) == len(rows)
    for row in rows:
        assert (row.bench, row.sync) == (name, sync)
        assert math.isfinite(row.value)
        assert row.low <= row.value <= row.high
        assert row.low > 0 or row.unit == "MB", "a node may return memory meanwhile"
        assert (row.ratio is None) == (row.ratio_to is None)
        assert (row.met is None) == (row.target is None)


def test_without_node_the_programs_have_no_ratio_to_it_and_the_bench_says_so(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("PATH", "")
    rows = measure("languages", "always", rounds=1, share=SHARE)
    without = {row.name for row in rows if row.ratio is None and "python -I" not in row.name}
    assert without == {f"{program.name}, typescript" for program in PROGRAMS}
    assert "node is not installed" in capfd.readouterr().err


def test_a_program_of_the_benches_has_the_same_result_in_both_languages():
    with Sandbox(*open_guests(), b"bench", ready=0) as sandbox:
        sessions = [BenchSession(sandbox, language, language) for language in Language]
        for program in PROGRAMS:
            first, second = (each.run(program.code(each.language, 3)) for each in sessions)
            assert first == second != 0, program.name


def test_the_json_report_holds_the_rows_and_what_they_were_measured_on(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
):
    file = tmp_path / "history.jsonl"
    assert bench.run(["feed"], sync="default", as_json=True, rounds=1, history=file) == 0
    (recorded,) = read_history(file)
    assert all(row.name.startswith("feed, sync default: ") for row in recorded.rows)
    report = json.loads(capfd.readouterr().out)
    assert all(row.keys() == FIELDS for row in report["rows"])
    machine = report["machine"]
    assert len(machine["load_average_before"]) == len(machine["load_average_after"]) == 3
    assert machine["processors"] >= 1
    assert {"rookery", "nats-server", "python"} <= machine["versions"].keys()


def test_a_ratio_is_taken_within_a_round_and_then_the_median_of_all():
    lines = (Figure("raw", "/s"), Figure("ours", "/s", "raw", at_least=2.0))
    rounds = [{"raw": 10, "ours": 10}, {"raw": 1, "ours": 3}, {"raw": 100, "ours": 200}]
    raw, ours = result_rows("demo", "always", lines, rounds)
    assert (raw.value, raw.ratio, raw.target, raw.met) == (10, None, None, None)
    assert (ours.value, ours.low, ours.high) == (10, 3, 200)
    assert (ours.ratio, ours.target, ours.met) == (2.0, ">= 2", True)


def test_a_bound_without_a_ratio_is_on_the_value():
    (row,) = result_rows("demo", "always", [Figure("ready", "s", at_most=10)], [{"ready": 10.5}])
    assert (row.ratio, row.target, row.met) == (None, "<= 10", False)


def test_the_audit_knows_every_command_that_must_be_in_the_journal():
    with Harness("default", SHARE, start=fork_process) as harness:
        filled = harness.load("fill", cell="fill")
        assert filled.done == MESSAGES * harness.count(1_000)
        JournalAudit(harness.url).check("fill", filled.done)
        with pytest.raises(Failed, match="1 are not in the journal"):
            JournalAudit(harness.url).check("fill", filled.done + 1)
        with pytest.raises(Failed, match="1 belong to no cell"):
            JournalAudit(harness.url).check("fill", filled.done - 1)


@pytest.mark.parametrize("role", ["turns", "whole", "runs"])
def test_a_harness_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, role: Literal["turns", "whole", "runs"]
):
    """Also beside the stores of the user, where nodes make the keys of realms elsewhere."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with Harness("default", SHARE) as harness, harness.node(role) as node:
        assert node.cpu_s() > 0
    assert not harness.store.exists()
    assert node.exit_code == 0
    assert list(tmp_path.rglob("*")) == []


def test_the_benches_command_and_fact_are_of_the_size_they_say():
    (life,) = histories(BenchDecider(), next_turn, entities=1, messages=2)
    assert 150 <= len(COMMAND) <= 170
    assert all(240 <= len(stored.body) <= 280 for stored in life)


def test_a_session_of_the_benches_lives_from_run_to_run():
    concern = sessions()
    (life,) = histories(concern, next_run, entities=1, messages=4)
    kinds = [type(fact).__name__ for stored in life for fact in concern.codec.decode(stored.body)]
    opened = ["Initialized", "Registered", "ExecutorEnsured"]
    assert kinds == [*opened, *["InputAccepted", "RunPrepared", "RunCommitted"] * 2]
