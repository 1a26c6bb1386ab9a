"""The history of the benches: what is recorded, and the verdict on two records."""

from __future__ import annotations

from math import inf
from pathlib import Path

import msgspec
import pytest

from rookery.ops.bench.harness.report import record_rows
from rookery.ops.bench.harness.result_rows import Figure, current_commit, result_rows
from rookery.ops.bench.history import history
from rookery.ops.bench.history.history import Record, RecordRow
from rookery.ops.cli import main
from rookery.schemas.errors import Refused


def row(name: str, ratio: float, *, higher: bool = False) -> RecordRow:
    return RecordRow(name=name, ratio=ratio, to="baseline", higher_is_better=higher)


def made(commit: str, *rows: RecordRow) -> Record:
    load = (0.5, 0.5, 0.5)
    return Record(date="2026-01-01", commit=commit, machine="m", load=load, rows=rows)


def write(file: Path, *records: Record) -> str:
    file.write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for record in records))
    return str(file)


def test_a_row_is_worse_beyond_the_factor_in_its_own_direction():
    before = made("a", row("slow", 10), row("same", 10), row("rate", 10, higher=True))
    after = made("b", row("slow", 12.1), row("same", 12), row("rate", 8.3, higher=True))
    slow, rate, same = history.compare(before, after)
    assert [(c.name, c.worse) for c in (slow, rate, same)] == [
        ("slow", True),
        ("rate", True),
        ("same", False),
    ]
    assert not any(change.worse for change in history.compare(after, before))


def test_a_count_that_was_zero_and_a_rate_that_became_zero_are_worse():
    before = made("a", row("count", 0), row("still", 0), row("rate", 1, higher=True))
    after = made("b", row("count", 1), row("still", 0), row("rate", 0, higher=True))
    found = {change.name: change.worse_by for change in history.compare(before, after)}
    assert found == {"count": inf, "rate": inf, "still": 1}


def test_rows_relative_to_another_baseline_are_not_compared():
    other = RecordRow(name="x", ratio=1, to="another baseline")
    with pytest.raises(Refused, match="no row in common"):
        history.compare(made("a", row("x", 1)), made("b", other))


def test_records_are_found_by_commit_and_the_default_is_the_last_two():
    records = [made("a1", row("x", 1)), made("b2", row("x", 1)), made("c3", row("x", 1))]
    names = [
        [record.commit for record in history.find_records(records, *commits)]
        for commits in ((None, None), ("a", None), ("a1", "b"))
    ]
    assert names == [["b2", "c3"], ["a1", "c3"], ["a1", "b2"]]
    with pytest.raises(Refused, match="no record of 'd'"):
        history.find_records(records, "d", None)
    with pytest.raises(Refused, match="needs two records, the history has 1"):
        history.find_records(records[:1], None, None)


def test_the_rows_of_one_commit_are_one_line(tmp_path: Path):
    file = tmp_path / "history.jsonl"
    write(file, made("older", row("x", 1)))
    history.record([row("x", 2), row("y", 3)], file)
    history.record([row("y", 4), row("z", 5)], file)
    older, now = history.read_history(file)
    assert (older.commit, now.commit) == ("older", current_commit())
    assert {r.name: r.ratio for r in now.rows} == {"x": 2, "y": 4, "z": 5}


def test_only_ratios_of_a_bench_are_recorded():
    lines = (Figure("raw", "/s"), Figure("ours", "/s", "raw"), Figure("late", "us", "raw"))
    measured = result_rows("demo", "always", lines, [{"raw": 10, "ours": 20, "late": 5}])
    assert [(r.name, r.ratio, r.higher_is_better) for r in record_rows(measured)] == [
        ("demo, sync always: ours", 2, True),
        ("demo, sync always: late", 0.5, False),
    ]


def test_the_command_names_what_is_worse_and_its_exit_code_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    file = write(tmp_path / "h", made("a", row("x", 1), row("y", 1)), made("b", row("x", 2)))
    assert main(["bench", "compare", "--history", file]) == 1
    said = capfd.readouterr().out
    assert "2.00 x worse" in said
    assert "1 rows compared, 1 more than 1.2 x worse" in said
    assert main(["bench", "compare", "b", "a", "--history", file]) == 0
    assert "2.00 x better" in capfd.readouterr().out


def test_a_line_that_is_no_record_is_refused_by_its_number(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    file = tmp_path / "h"
    file.write_text(msgspec.json.encode(made("a", row("x", 1))).decode() + "\nnonsense\n")
    assert main(["bench", "compare", "--history", str(file)]) == 2
    assert "line 2 of" in capfd.readouterr().err


@pytest.mark.parametrize("command", [["profile"], ["peers"], ["feed"]])
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], command: list[str]
):
    file = str(tmp_path / "no folder" / "h")
    assert main(["bench", *command, "--record", file]) == 2
    assert "is not accessible: No such file or directory" in capfd.readouterr().err
    assert main(["bench", "compare", "--history", str(tmp_path)]) == 2
    assert "Is a directory" in capfd.readouterr().err


def test_the_committed_history_is_readable():
    assert all(record.rows for record in history.read_history())
