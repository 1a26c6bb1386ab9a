"""What a log line says, and what it never says."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import msgspec
import pytest

from rookery.ops.logs import REPEATED_MAX, JsonLines, TextLines, configure
from rookery.schemas.errors import Failed


def record(
    event: str, *, error: BaseException | None = None, **fields: object
) -> logging.LogRecord:
    made = logging.getLogger("rookery.node").makeRecord(
        "rookery.node",
        logging.WARNING,
        __file__,
        1,
        event,
        (),
        (type(error), error, error.__traceback__) if error else None,
        extra=fields,
    )
    made.created = 1_700_000_000.125
    return made


def as_json(made: logging.LogRecord) -> dict[str, object]:
    return msgspec.json.decode(JsonLines().format(made))


def test_a_json_line_has_the_event_and_its_fields():
    assert as_json(record("command quarantined", verb="run", attempt=3)) == {
        "at": "2023-11-14T22:13:20.125Z",
        "level": "warning",
        "logger": "rookery.node",
        "event": "command quarantined",
        "verb": "run",
        "attempt": 3,
    }


def test_a_text_line_is_one_line_whatever_is_in_it():
    line = TextLines().format(record("two\nlines", detail='a "b"\nc', plain="x"))
    assert "\n" not in line
    assert line.endswith(r'two\nlines detail="a \"b\"\nc" plain=x')


@pytest.mark.parametrize("format_line", [TextLines().format, lambda r: JsonLines().format(r)])
def test_payloads_and_secrets_are_never_printed(format_line):
    line = format_line(
        record(
            "connected to nats://s3cret@host:1",
            url="nats://s3cret@host:1",
            token="s3cret",
            body={"s3cret": 1},
            code="print('s3cret')",
            raw=b"s3cret",
            error=KeyError("s3cret"),
        )
    )
    assert "s3cret" not in line
    assert "nats://***@host:1" in line
    assert "6 bytes" in line


def test_an_error_code_of_ours_is_no_program():
    assert as_json(record("refused", code="CONFLICT"))["code"] == "CONFLICT"


def test_that_there_is_no_code_is_no_secret():
    assert as_json(record("answered", code=""))["code"] == ""


def test_an_error_of_ours_is_logged_in_full_and_a_foreign_one_by_type_and_place():
    def raised(error: Exception) -> Exception:
        try:
            raise error
        except Exception as caught:
            return caught

    ours = as_json(record("x", error=raised(Failed("CONFLICT", "three times"))))
    assert ours["error"] == "CONFLICT: three times"
    strange = as_json(record("x", error=raised(ValueError("payload text"))))
    assert strange["error"] == "ValueError"
    assert "test_logs.py" in str(strange["trace"])
    system = as_json(record("x", error=raised(OSError(28, "No space left on device"))))
    assert system["error"] == "OSError: No space left on device"


@pytest.fixture
def restored_loggers() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("rookery")
    before = root.handlers[:], root.level, ours.level
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])


def test_the_level_counts_for_us_and_libraries_are_heard_from_warning(restored_loggers):
    stream = io.StringIO()
    configure("debug", "auto", stream)
    logging.getLogger("rookery.bus").debug("ours")
    logging.getLogger("nats").info("theirs")
    logging.getLogger("nats").warning("theirs, worse")
    events = [msgspec.json.decode(line)["event"] for line in stream.getvalue().splitlines()]
    assert events == ["ours", "theirs, worse"]


def lines_at(at_s: float, count: int, logger: str, handler: logging.Handler) -> None:
    for number in range(count):
        made = logging.getLogger(logger).makeRecord(
            logger, logging.WARNING, __file__, 1, "dropped: %s", (number,), None
        )
        made.created = at_s
        handler.handle(made)


def test_what_any_client_can_cause_is_logged_a_few_times_a_minute_and_counted(restored_loggers):
    stream = io.StringIO()
    handler = configure("info", "json", stream)
    for at_s in (1_000.0, 1_059.0, 1_061.0):
        lines_at(at_s, 1_000, "rookery.bus.reads", handler)
    lines_at(1_061.0, 30, "rookery.bus.nats", handler)
    lines_at(1_061.0, 100, "rookery.tools", handler)
    lines = [msgspec.json.decode(line) for line in stream.getvalue().splitlines()]
    of_reads = [line for line in lines if line["logger"] == "rookery.bus.reads"]
    assert len(of_reads) == 2 * REPEATED_MAX
    assert [line["not_logged"] for line in of_reads if "not_logged" in line] == [1_980]
    assert of_reads[REPEATED_MAX]["not_logged"] == 1_980
    of_others = [line for line in lines if line["logger"] != "rookery.bus.reads"]
    assert len(of_others) == REPEATED_MAX + 100, "another kind is counted apart, a tool not at all"
