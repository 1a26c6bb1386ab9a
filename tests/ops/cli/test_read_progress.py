"""Progress lines are shown on terminals only."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest

from rookery.ops.cli.access.realm_access import (
    LONG_FILE_BYTES,
    LONG_MESSAGES,
    file_lines,
    read_progress,
)
from rookery.ops.cli.options import parse_time_ms
from rookery.ops.cli.rendering.run_output import RunProgressLine
from rookery.schemas.errors import Refused

NOW_MS = 1_700_000_000_000


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_a_long_reading_is_shown_in_one_line_that_is_gone_in_the_end():
    terminal = Terminal()
    with read_progress(200_000, terminal) as shown:
        assert shown is not None
        for done in (1, 1_999, 100_000, 200_000):
            shown.update(done)
    said = terminal.getvalue().split("\r\x1b[K")
    assert said == [
        "",
        *(f"reading the journal: {share} % of 200,000 messages" for share in (0, 50, 100)),
        "",
    ]


@pytest.mark.parametrize("stream", [StringIO(), Terminal()], ids=["piped", "terminal"])
def test_a_short_reading_and_a_piped_one_leave_no_trace(stream: StringIO):
    with read_progress(LONG_MESSAGES - 1 if stream.isatty() else 10**9, stream) as shown:
        assert shown is None
    assert stream.getvalue() == ""


def test_the_reading_of_a_long_file_is_shown_also_if_it_ends_early(tmp_path: Path):
    path, line = tmp_path / "export.jsonl", b"x" * 24_999 + b"\n"
    path.write_bytes(line * 2_001)
    terminal, total = Terminal(), 2_001 * len(line)
    with path.open("rb") as file, file_lines(file, terminal) as lines:
        for number, _ in enumerate(lines):
            if number == 1_500:
                break
    said = terminal.getvalue().split("\r\x1b[K")
    shown = [f"reading the journal: {share} % of {total:,} bytes" for share in (0, 49)]
    assert said == ["", *shown, ""]


def test_a_short_file_and_a_piped_reading_leave_no_trace(tmp_path: Path):
    path = tmp_path / "export.jsonl"
    for size, stream in ((1, Terminal()), (LONG_FILE_BYTES, StringIO())):
        path.write_bytes(b"\n" * size)
        with path.open("rb") as file, file_lines(file, stream) as lines:
            assert next(iter(lines)) == b"\n"
        assert stream.getvalue() == ""


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("30s", NOW_MS - 30_000),
        ("10m", NOW_MS - 600_000),
        ("2h", NOW_MS - 7_200_000),
        ("1d", NOW_MS - 86_400_000),
        ("2023-11-14T22:13:20+00:00", NOW_MS),
    ],
)
def test_a_moment_is_so_long_ago_or_a_date(text: str, moment: int):
    assert parse_time_ms(text, NOW_MS) == moment


@pytest.mark.parametrize("text", ["", "soon", "10", "-1h", "0001-01-01", "2023-13-01"])
def test_what_is_no_moment_is_refused(text: str):
    with pytest.raises(Refused):
        parse_time_ms(text, NOW_MS)


# --- of a run -------------------------------------------------------------------------------------


def test_a_passive_input_waits_for_one_that_wakes_the_session():
    standing = RunProgressLine()
    standing.apply({"type": "session.input_accepted.v1", "mode": "passive"})
    assert standing.line == "waits for an input that wakes the session"
    standing.apply({"type": "session.input_accepted.v1"})
    assert standing.line == "waits for the session to be free"


def test_of_many_calls_some_are_named():
    standing = RunProgressLine()
    for number in range(400):
        asked = {"type": "tool.requested.v1", "operation_id": str(number), "name": "slow"}
        standing.apply(asked)
    assert standing.line == "waits for slow, slow, slow, slow, slow and 395 more"
