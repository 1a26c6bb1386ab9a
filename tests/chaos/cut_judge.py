"""What may not be true of a session, whatever its node went through; and its story in lines.

A call's executions are held to its facts. All tools here must not act twice, and the operator
looks into their ledger before an answer, so a second execution is a fault in any case.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from operator import itemgetter
from typing import Literal, NamedTuple

from tests.chaos.cut_record import Execution, SeenFact, SessionRecord

__all__ = ["Fault", "faults", "late_acts", "late_facts", "timeline"]

Kind = Literal["double", "stuck", "unanswered", "late"]
NEWS = ("session.", "turn.", "tool.", "approval.")


class Fault(NamedTuple):
    """A rule that was broken."""

    kind: Kind
    text: str


def faults(story: SessionRecord) -> list[Fault]:
    """Every rule that the story breaks."""
    calls = story.calls()
    found: list[Fault] = []
    for operation, facts in calls.items():
        done = [one for one in story.executions if one.operation == operation]
        found += (Fault("double", f"{operation} {text}") for text in _double(facts, done))
    found += (
        Fault("stuck", f"{operation} was intended and has no outcome")
        for operation in story.open_calls()
    )
    ends = Counter(seen.fact.get("run", "") for seen in story.ends())
    accepted = {seen.fact.get("run", "") for seen in story.of("session.input_accepted")}
    found += (
        Fault("stuck", f"run {run} ended {ends[run]} times")
        for run in sorted(accepted | set(ends))
        if ends[run] != 1
    )
    if not story.answers:
        found.append(Fault("unanswered", "the client was never answered"))
    return [Fault(kind, f"{story.session}: {text}") for kind, text in found]


def _double(facts: list[SeenFact], done: list[Execution]) -> list[str]:
    """What was done beyond what the facts of the call allow."""
    found = [f"was executed {len(done)} times"] if len(done) > 1 else []
    intended = {f.fact["attempt"] for f in facts if f.type == "tool.intent_recorded.v1"}
    for one in done:
        what = f"attempt {one.attempt} was executed by {one.process}"
        if one.attempt not in intended:
            found.append(f"{what} without an intent")
        if one.acted_s > _answered_s(facts, one.attempt):
            found.append(f"{what} after its recovery was answered")
    return found


def _answered_s(facts: list[SeenFact], attempt: int) -> float:
    """When a recovery that was required after this attempt was answered."""
    began = False
    for before, seen in pairwise(facts):
        began |= before.fact.get("attempt") == attempt
        if began and before.type == "tool.recovery_required.v1":
            return seen.at_s
    return float("inf")


def late_acts(story: SessionRecord) -> list[Fault]:
    """Calls that a node began while another one held the session's partition. A worker holds
    none."""
    nodes = {move.node for move in story.moves}
    return [
        Fault("late", f"{story.session}: {one.operation} began on {one.process}, not its owner")
        for one in story.executions
        if one.process in nodes and story.owner_at(one.began_s) not in ("", one.process)
    ]


def late_facts(story: SessionRecord) -> list[SeenFact]:
    """Facts of a node that were stored while another one held the session's partition."""
    return [seen for seen in story.facts if story.owner_at(seen.at_s) not in ("", seen.node)]


def timeline(
    story: SessionRecord, *, since_s: float, marks: dict[str, float] | None = None
) -> list[str]:
    """The story in the order of time, in seconds from ``since_s``."""
    told = [(at_s, f"--- {mark}") for mark, at_s in (marks or {}).items()]
    told += [(seen.at_s, _line(seen)) for seen in story.facts if seen.type.startswith(NEWS)]
    told += [
        (m.at_s, f"claim: {m.node or 'released'}") for m in story.moves if m.at_s > since_s - 1
    ]
    told += [
        (e.acted_s, f"EXECUTED {e.operation} attempt {e.attempt} by {e.process}, begun"
                    f" {e.began_s - since_s:.3f}")
        for e in story.executions
    ]  # fmt: skip
    told += [(w.at_s, f"operator: {w.said} {w.operation}: {w.answer}") for w in story.words]
    told += [(a.at_s, f"the client is answered: {a.status}") for a in story.answers]
    return [f"{at_s - since_s:9.3f}  {text}" for at_s, text in sorted(told, key=itemgetter(0))]


def _line(seen: SeenFact) -> str:
    more = [
        f" {name} {seen.fact[name]}"
        for name in ("operation_id", "attempt", "resolved_by", "reason")
        if seen.fact.get(name)
    ]
    return f"seq {seen.sequence} {seen.type} by {seen.node}{''.join(more)}"
