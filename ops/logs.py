"""Logs: an event's name and fields, as a line of text for people or a JSON object for machines.

Modules log with the standard library: ``log.warning("command quarantined", extra={"verb": v})``.
The formatters never print bodies, code, inputs, tokens, user parts of URLs, or the text of a
foreign exception, which may quote such data.
"""

from __future__ import annotations

import logging
import re
import sys
import traceback
from collections import Counter
from datetime import UTC, datetime
from threading import Lock
from typing import IO, Any, Final, TextIO, cast

from rookery.actors.protection.scrubber import ScrubbedStream
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import CODES, Failed, Refused

__all__ = ["REPEATED_MAX", "JsonLines", "TextLines", "configure", "scrub_output"]

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_WITHHELD = {"authorization", "body", "code", "credentials", "data", "inputs", "password"}
_WITHHELD |= {"payload", "secret", "token"}
_USER_PART = re.compile(r"(?<=://)[^/\s@]+@")
REPEATED_MAX: Final = 20
"""Lines of one kind that are logged within a minute."""
MINUTE_S: Final = 60.0


def scrub_output() -> None:
    """From now on, what a tool with a credential prints or logs is scrubbed of it."""
    sys.stdout = cast("TextIO", ScrubbedStream(sys.stdout))
    sys.stderr = cast("TextIO", ScrubbedStream(sys.stderr))


def configure(level: str, format: str, stream: IO[str]) -> logging.Handler:  # noqa: A002
    """Log to ``stream`` from now on; libraries log from ``warning`` upwards."""
    text = format == "text" or (format == "auto" and stream.isatty())
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextLines() if text else JsonLines())
    handler.addFilter(WarningLimit())
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("rookery").setLevel(level.upper())
    return handler


class WarningLimit(logging.Filter):
    """Limits the warnings and errors of the bus, which any client can cause by what it sends. The
    first line of a kind after a minute says how many were not logged: ``not_logged``."""

    def __init__(self) -> None:
        super().__init__("rookery.bus")
        self._lock, self._began_s = Lock(), 0.0
        self._counts = Counter[tuple[str, str]]()
        """By logger and line without its values, of this minute."""
        self._not_logged = Counter[tuple[str, str]]()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING or not super().filter(record):
            return True
        kind = record.name, str(record.msg)
        with self._lock:
            if not 0 <= record.created - self._began_s < MINUTE_S:
                self._began_s = record.created
                self._counts.clear()
            self._counts[kind] += 1
            if self._counts[kind] > REPEATED_MAX:
                self._not_logged[kind] += 1
                return False
            if self._counts[kind] == 1 and (count := self._not_logged.pop(kind, 0)):
                record.not_logged = count
        return True


class TextLines(logging.Formatter):
    """``11:02:07 info    rookery.node node started node=n1 realm=default``"""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created).astimezone()
        event = _event(record).replace("\n", "\\n")
        head = f"{at:%H:%M:%S} {record.levelname.lower():7} {record.name} {event}"
        return " ".join([head, *(f"{key}={_word(value)}" for key, value in _fields(record))])


class JsonLines(logging.Formatter):
    """One object per line: ``at``, ``level``, ``logger``, ``event`` and the fields."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        head = {
            "at": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": _event(record),
        }
        return encode_json(head | dict(_fields(record)) | head).decode()


def _event(record: logging.LogRecord) -> str:
    return _USER_PART.sub("***@", record.getMessage())


def _fields(record: logging.LogRecord) -> list[tuple[str, Any]]:
    fields = [(k, _safe(k, v)) for k, v in vars(record).items() if k not in _STANDARD]
    if record.exc_info and record.exc_info[1] is not None:
        fields += _exception(record.exc_info[1])
    return fields


def _safe(key: str, value: Any) -> Any:
    if key in _WITHHELD and value and str(value) not in CODES:  # A program's `code`, or an error's.
        return "***"
    match value:
        case None | bool() | int() | float():
            return value
        case bytes():
            return f"{len(value)} bytes"
        case BaseException():
            return _exception_summary(value)
        case _:
            return _USER_PART.sub("***@", str(value))


def _exception(error: BaseException) -> list[tuple[str, Any]]:
    frames = traceback.extract_tb(error.__traceback__)
    where = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
    return [("error", _exception_summary(error)), ("trace", " < ".join(reversed(where)))]


def _exception_summary(error: BaseException) -> str:
    """The text of Rookery's exceptions; of others only the type, and the system's error text."""
    match error:
        case Refused() | Failed():
            return _USER_PART.sub("***@", str(error))
        case OSError(strerror=str(text)):
            return f"{type(error).__name__}: {text}"
        case _:
            return type(error).__name__


def _word(value: Any) -> str:
    text = str(value)
    return text if text and not re.search(r"[\s\"=]", text) else encode_json(text).decode()
