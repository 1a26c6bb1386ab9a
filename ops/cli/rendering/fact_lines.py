"""A journal message as people and programs want to see it: a line a fact.

Lines for people leave out what is the same everywhere; JSON lines leave out nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from rookery.bus.ports import Filter, StoredMessage
from rookery.ops.cli.output import clock_time
from rookery.schemas.codec import encode_json
from rookery.schemas.envelope import Fact
from rookery.schemas.errors import Refused
from rookery.schemas.ids import check_session_id

__all__ = ["fact_lines", "fact_selection"]

_ENVELOPE = {field.encode_name for field in msgspec.structs.fields(Fact)} | {"type", "row"}
_DETAIL_CHARACTERS_MAX = 60


def fact_selection(session: str | None, family: str | None, run: str | None = None) -> Filter:
    """What the options select, or ``Refused``: of a wrong name one would wait in vain."""
    if family is not None:
        _check_family(family)
    return Filter(family, session and check_session_id(session), run)


def _check_family(family: str) -> None:
    from rookery.schemas.export import FAMILIES  # noqa: PLC0415 - all facts, seldom wanted.

    if family not in FAMILIES:
        known = f"one of {', '.join(sorted(FAMILIES))}"
        raise Refused("INVALID_ARGUMENT", f"{family[:80]!r} is no family of facts", hint=known)


def fact_lines(stored: StoredMessage, where: Filter, *, json: bool) -> Iterator[str]:
    """The facts of a message that ``where`` selects, named ``<sequence>.<n>``."""
    body = msgspec.json.decode(stored.body)
    facts = body if isinstance(body, list) else [body]
    for number, fact in enumerate(facts, 1):
        if where.run is not None and fact.get("run") != where.run:
            continue
        position = f"{stored.sequence}.{number}"
        yield _json_line(stored, position, fact) if json else _text_line(stored, position, fact)


def _json_line(stored: StoredMessage, position: str, fact: dict[str, Any]) -> str:
    head = {
        "position": position,
        "sequence": stored.sequence,
        "family": stored.entity.family,
        "key": stored.entity.key,
        "stored_at_ms": stored.stored_at_ms,
    }
    return encode_json(head | {"fact": fact}).decode()


def _text_line(stored: StoredMessage, position: str, fact: dict[str, Any]) -> str:
    kind = str(fact.get("type", "sealed")).rpartition(".v")[0] or "sealed"
    words = [f"{position:>8}", clock_time(stored.stored_at_ms), stored.entity.key, kind]
    if "run" in fact:
        words.append(f"run={fact['run']}")
    words += [
        f"{name}={_short(value)}"
        for name, value in fact.items()
        if name not in _ENVELOPE and not isinstance(value, dict | list) and value not in (None, "")
    ]
    return "  ".join(words)


def _short(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= _DETAIL_CHARACTERS_MAX else text[:_DETAIL_CHARACTERS_MAX] + "..."
