"""Lines of facts, for `rookery watch` and `journal` commands: one a fact, as text or as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from rookery.bus.ports import Filter, StoredMessage
from rookery.ops.cli.output import clock_time, printable
from rookery.ops.cli.rendering.fact_words import LEASE_WORDS, FactFields
from rookery.schemas.codec import encode_json, fact_name
from rookery.schemas.envelope import Fact
from rookery.schemas.errors import Refused
from rookery.schemas.event_index import select_fact
from rookery.schemas.events import EventCursor, EventFilter
from rookery.schemas.facts import surface
from rookery.schemas.ids import check_session_id

__all__ = ["fact_lines", "fact_selection"]

# --- words of surfaces ----------------------------------------------------------------------------

# The words for facts of surfaces, for lines of people.


_Words = Callable[[dict[str, Any]], str]
_OF_ROWS: Final[Mapping[str, str]] = {
    "ApplyBoundaryAdd": "is being added",
    "ApplyBoundaryReload": "is being reloaded",
    "ApplyBoundaryRemoveDraining": "takes no new calls",
    "ApplyBoundaryRemoveNoop": "was not there to be removed",
    "CallStartedRejectRemoving": "refused a call: it is being removed",
    "CallStartedRejectUnavailable": "refused a call: it is not there",
}


def _of(words: str) -> _Words:
    return lambda fields: f"{fields['surface_id']} {words}"


def _of_row(words: str) -> _Words:
    return lambda fields: f"{fields['surface_id']} {_OF_ROWS.get(fields.get('row', ''), words)}"


def _catalogued(fields: dict[str, Any]) -> str:
    what = "reloaded" if fields.get("reload") else "added"
    kind = fields["origin"]["kind"]
    return f"{fields['surface_id']} is {what}, of kind {kind}, change {fields['sequence']}"


def _failed(fields: dict[str, Any]) -> str:
    return f"{fields['surface_id']} has no connection: {fields.get('error') or 'no reason given'}"


_OF_SURFACES: Final[Mapping[type[Fact], _Words]] = {
    surface.Catalogued: _catalogued,
    surface.Dropped: lambda fields: (
        f"{fields['surface_id']} is removed, change {fields['sequence']}"
    ),
    surface.Registered: _of("is registered"),
    surface.AddStaged: _of("is to be added at the next boundary"),
    surface.RemoveStaged: _of("is to be removed at the next boundary"),
    surface.ReloadStaged: _of("is to be reloaded at the next boundary"),
    surface.BoundaryApplied: _of_row("has reached a boundary"),
    surface.PendingSucceeded: _of("is active"),
    surface.PendingFailed: _failed,
    surface.CallStarted: _of_row("has a call in flight"),
    surface.CallFinished: _of("has finished a call"),
    surface.RemovalFinalized: _of("is removed"),
    surface.RemovalForced: _of("is removed with calls in flight"),
    surface.SnapshotAligned: lambda fields: f"the tools are those of epoch {fields['epoch']}",
    surface.ShutDown: lambda _: "no surface changes any more",
}
"""Of the surfaces; facts of MCP servers are shown by their fields."""
SURFACE_WORDS: Final = {fact_name(kind): words for kind, words in _OF_SURFACES.items()}


# --- lines ----------------------------------------------------------------------------------------


_ENVELOPE = {field.encode_name for field in msgspec.structs.fields(Fact)} | {"type", "row"}
_DETAIL_CHARACTERS_MAX = 60


def fact_selection(session_id: str | None, family: str | None, run: str | None = None) -> Filter:
    """The filter for these options; ``Refused`` for a wrong name, which no fact would match."""
    if family is not None:
        _check_family(family)
    return Filter(family, session_id and check_session_id(session_id), run)


def _check_family(family: str) -> None:
    from rookery.schemas.export import FAMILIES  # noqa: PLC0415 - slow, seldom needed.

    if family not in FAMILIES:
        known = f"one of {', '.join(sorted(FAMILIES))}"
        raise Refused("INVALID_ARGUMENT", f"{family[:80]!r} is no family of facts", hint=known)


def fact_lines(
    stored: StoredMessage,
    where: Filter,
    *,
    json: bool,
    only: EventFilter | None = None,
    behind: EventCursor | None = None,
) -> Iterator[str]:
    """A line for each selected fact of a message; a fact's position is ``<sequence>.<n>``. With
    ``only``, JSON lines have the cursor to continue from; ``behind``: that of the last line."""
    for number, fact in enumerate(_facts_of(stored), 1):
        if behind is not None and (stored.sequence, number) <= (behind.sequence, behind.fact):
            continue
        if only is not None and select_fact(only, fact, stored.entity.key) is None:
            continue
        if where.run is not None and fact.get("run") != where.run:
            continue
        if where.family is not None and _family(stored, fact) != where.family:
            continue
        position = f"{stored.sequence}.{number}"
        cursor = "" if only is None else f"{position}@{only.fingerprint}"
        if json:
            yield _json_line(stored, position, fact, cursor)
        else:
            yield _text_line(stored, position, fact)


def _facts_of(stored: StoredMessage) -> list[dict[str, Any]]:
    """The facts of a message. One that is foreign to Rookery has a line that says so."""
    try:
        body = msgspec.json.decode(stored.body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        body = None
    unreadable = {"type": "unreadable.v0", "session": stored.entity.key}
    facts = body if isinstance(body, list) else [body]
    return [fact if isinstance(fact, dict) else unreadable for fact in facts]


def _json_line(stored: StoredMessage, position: str, fact: dict[str, Any], cursor: str = "") -> str:
    head: FactFields = {
        "position": position,
        "sequence": stored.sequence,
        "family": _family(stored, fact),
        "key": stored.entity.key,
        "stored_at_ms": stored.stored_at_ms,
    }
    if cursor:
        head["cursor"] = cursor
    return encode_json(head | {"fact": fact}).decode()


def _family(stored: StoredMessage, fact: dict[str, Any]) -> str:
    """The family of a fact is in its type; that of a sealed message is its entity's."""
    return str(fact.get("type", "")).partition(".")[0] or stored.entity.family


def _text_line(stored: StoredMessage, position: str, fact: dict[str, Any]) -> str:
    kind = str(fact.get("type", "sealed")).rpartition(".v")[0] or "sealed"
    words = [f"{position:>8}", clock_time(stored.stored_at_ms), stored.entity.key, kind]
    if "run" in fact:
        words.append(f"run={fact['run']}")
    if "by" in fact:
        words.append(f"by={fact['by']}")
    if own_words := _own_words(kind, fact):
        return "  ".join([*words, own_words])
    words += [
        f"{name}={_short(value)}"
        for name, value in fact.items()
        if name not in _ENVELOPE and not isinstance(value, dict | list) and value not in (None, "")
    ]
    return "  ".join(words)


def _own_words(kind: str, fact: FactFields) -> str:
    """Empty for a fact of another family, and for one whose fields are none of its kind."""
    words = LEASE_WORDS.get(kind) or SURFACE_WORDS.get(kind)
    try:
        return "" if words is None else _one_line(words(fact))
    except (ArithmeticError, LookupError, OSError, TypeError, ValueError):
        return ""


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()))


def _short(value: Any) -> str:
    text = _one_line(str(value))
    return text if len(text) <= _DETAIL_CHARACTERS_MAX else text[:_DETAIL_CHARACTERS_MAX] + "..."
