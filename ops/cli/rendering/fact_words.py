"""A run's facts as its timeline knows them: who said it, when, and in a few words for people.

A journal message as people and programs want to see it: a line a fact.

Lines for people leave out what is the same everywhere; JSON lines leave out nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

import msgspec

from rookery.bus.ports import Filter, StoredMessage
from rookery.ops.cli.output import clock_time
from rookery.schemas.codec import encode_json
from rookery.schemas.envelope import Fact
from rookery.schemas.errors import Refused
from rookery.schemas.ids import check_session_id

__all__ = [
    "LANES",
    "Names",
    "RunFact",
    "fact_lines",
    "fact_selection",
    "fact_words",
    "facts_of_run",
]

LANES: Final = {
    "session": "admission",
    "turn": "turns",
    "tool": "tools",
    "approval": "approvals",
    "sandbox": "sandbox",
}
"""Family to its actor."""


FactFields = dict[str, Any]


class RunFact(NamedTuple):
    """One fact; ``kind`` is its wire name without version."""

    position: str
    """``<sequence>.<n>``"""
    kind: str
    at_ms: int
    fields: FactFields

    @property
    def lane(self) -> str:
        return LANES[self.kind.partition(".")[0]]


def facts_of_run(run_id: str, messages: Iterable[StoredMessage]) -> list[RunFact]:
    """The facts of these messages that are about the run, in order."""
    found = []
    for stored in messages:
        body = msgspec.json.decode(stored.body)
        for number, fact in enumerate(body if isinstance(body, list) else [], 1):
            if stored.entity.family in LANES and fact.get("run") == run_id:
                kind = fact["type"].rpartition(".")[0]
                found.append(RunFact(f"{stored.sequence}.{number}", kind, fact["at_ms"], fact))
    return found


class Names:
    """What people call the calls of a run: by tool and number."""

    def __init__(self, facts: Iterable[RunFact]) -> None:
        self._names: dict[str, str] = {}
        for fact in facts:
            for call in (*fact.fields.get("calls", ()), fact.fields):
                if "operation_id" in call and "number" in call:
                    self._names[call["operation_id"]] = f"{call['name']} #{call['number']}"

    def of(self, operation_id: str) -> str:
        return self._names.get(operation_id, operation_id)


def fact_words(fact: RunFact, names: Names) -> str:
    """What a fact says."""
    said = fact.fields
    if fact.kind in _OF_APPROVALS:
        return _OF_APPROVALS[fact.kind](names.of(said.get("operation_id", "")), said)
    if fact.kind.startswith("tool."):
        tell = _OF_CALLS.get(fact.kind, _of_call)
        return tell(names.of(said.get("operation_id", "")), said)
    if fact.kind == "turn.tool_calls_returned":
        calls = [names.of(call["operation_id"]) for call in said.get("calls", ())]
        return f"wants {', '.join(calls) or said.get('tool_count', 'calls')}"
    if (say := _OF_OTHERS.get(fact.kind)) is not None:
        return say(said)
    return _and(_plain(fact.kind), _error(said))


def _of_call(call: str, said: FactFields) -> str:
    return _and(f"{call} {_plain(said['type'].rpartition('.')[0])}", _error(said))


def _plain(kind: str) -> str:
    return kind.partition(".")[2].replace("_", " ")


def _and(what: str, more: Any) -> str:
    return f"{what}: {more}" if more else what


def _by(said: FactFields) -> str:
    return f", says {said['resolved_by']}" if said.get("resolved_by") else ""


def _counted(operations: Any) -> str:
    return "1 call" if len(operations) == 1 else f"{len(operations)} calls"


def _error(said: FactFields) -> str:
    """Text, or an object with a code."""
    error = said.get("error")
    if isinstance(error, dict):
        return f"{error.get('code')}: {error.get('message')}"
    return " ".join(str(error or "").split())


def _accepted(said: FactFields) -> str:
    mode = said.get("mode", "queue")
    return "accepted" if mode == "queue" else f"accepted, mode {mode}"


def _to_end(said: FactFields) -> str:
    when = "now" if said.get("now") else "at its next boundary"
    return _and(f"is to end {when}", said.get("reason"))


def _requested(call: str, said: FactFields) -> str:
    return f"{call} requested" + (", waits for a place" if said.get("waits") else "")


def _answered(call: str, said: FactFields) -> str:
    verified = "verified" if said.get("verified") else "unverified"
    decision = said["decision"].replace("_", " ")
    return _and(f"{call} {decision} by {said['actor']}, {verified}", said.get("reason"))


def _allowed(call: str, said: FactFields) -> str:
    grant = said.get("session_grant_id")
    return f"{call} allowed by " + (f"grant {grant}" if grant else f"its rule {said.get('rule')}")


def _may_act_words(said: FactFields) -> str:
    """Until when a tool could act after its outcome was found to be unknown."""
    until_ms = said.get("may_act_until_ms", 0)
    return f"; it may act until {clock_time(until_ms)}" if until_ms > said["at_ms"] else ""


_OF_OTHERS: Final[dict[str, Callable[[FactFields], str]]] = {
    "session.input_accepted": _accepted,
    "session.run_prepared": lambda _: "has the session",
    "session.queued_run_drained": lambda _: "has the session",
    "session.run_committed": lambda _: "committed, the session is free",
    "session.run_failed": lambda _: "failed, the session is free",
    "session.run_rolled_back": lambda _: "rolled back, the session is free",
    "session.boundary_cancel_requested": _to_end,
    "session.input_cancelled": lambda said: _and("withdrawn", said.get("reason")),
    "turn.ops_registered": lambda said: f"waits for {_counted(said['barrier_ids'])}",
    "turn.ops_barrier_satisfied": lambda said: f"{_counted(said['operation_ids'])} answered",
    "turn.parked": lambda said: f"parked: {said['code']}",
}
_OF_CALLS: Final[dict[str, Callable[[str, FactFields], str]]] = {
    "tool.requested": _requested,
    "tool.intent_recorded": lambda call, said: f"{call} is called, attempt {said['attempt']}",
    "tool.completed": lambda call, said: (
        f"{call} answered after {said['duration_ms']} ms{_by(said)}"
    ),
    "tool.failed": lambda call, said: f"{call} failed: {_error(said)}{_by(said)}",
    "tool.recovery_required": lambda call, said: (
        f"{call} may have acted, nobody knows: {said['reason']}{_may_act_words(said)}"
    ),
    "tool.retry_allowed": lambda call, said: f"{call} is to be tried again{_by(said)}",
}
_OF_APPROVALS: Final[dict[str, Callable[[str, FactFields], str]]] = {
    "approval.requested": lambda call, said: _and(f"{call} wants approval", said.get("why")),
    "approval.dispatch_intended": lambda call, said: (
        f"{call} is put before {', '.join(said['dispatchers'])}"
    ),
    "approval.escalated": lambda call, said: (
        f"{call} is put before {', '.join(said['dispatchers'])}, too"
    ),
    "approval.answered": _answered,
    "approval.answer_refused": lambda call, said: (
        f"an answer of {said['actor'] or 'somebody'} to {call} does not count: {said['code']}"
    ),
    "approval.closed": lambda call, said: f"{call} may not: {said['reason_code']}",
    "approval.auto_allowed": _allowed,
    "approval.grant_issued": lambda call, _: f"{call} may be made, once",
    "approval.grant_consumed": lambda call, _: f"{call} has used its grant",
}


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
