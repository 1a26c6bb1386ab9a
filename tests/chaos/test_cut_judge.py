"""What is judged of a session whose node was cut off: each broken rule is found, and no other."""

from __future__ import annotations

import pytest

from tests.chaos.cut_judge import faults, late_acts, late_facts, timeline
from tests.chaos.cut_record import Answered, Execution, Move, SeenFact, SessionRecord

CALL = "call-1"


def fact(at_s: float, kind: str, node: str = "na", **more: object) -> SeenFact:
    """Of the one call, or of the run."""
    told = {"operation_id": CALL} if kind.startswith("tool.") else {}
    content = {"type": f"{kind}.v1", "source": f"rookery@{node}", "run": "r", **told, **more}
    return SeenFact(at_s, round(at_s * 1_000), content)


def intent(at_s: float, attempt: int, node: str = "na") -> SeenFact:
    deadline = {"deadline_at_ms": (at_s + 5) * 1_000}
    return fact(at_s, "tool.intent_recorded", node, attempt=attempt, **deadline)


def story(
    *calls: SeenFact, done: list[Execution], answered: bool = True, ends: int = 1
) -> SessionRecord:
    """nb takes the session over at 10.0."""
    begun, ended = fact(0.0, "session.input_accepted"), fact(20.0, "session.run_committed", "nb")
    moves = [Move(-1.0, 3, "na"), Move(10.0, 3, "nb")]
    answers = [Answered(20.1, "ok")] if answered else []
    return SessionRecord("s", [begun, *calls, *[ended] * ends], done, [], moves, answers)


def execution(at_s: float, attempt: int = 1, process: str = "na", took_s: float = 0.0) -> Execution:
    return Execution(at_s - took_s, at_s, CALL, attempt, process)


RETRIED = (
    intent(1.0, 1),
    fact(10.1, "tool.recovery_required", "nb"),
    fact(10.6, "tool.retry_allowed", "nb"),
    intent(10.7, 2, "nb"),
    fact(10.9, "tool.completed", "nb"),
)
COMPLETED = (
    intent(1.0, 1),
    fact(10.1, "tool.recovery_required", "nb"),
    fact(10.6, "tool.completed", "nb", resolved_by="ann"),
)


@pytest.mark.parametrize(
    "told",
    [
        story(intent(1.0, 1), fact(1.2, "tool.completed"), done=[execution(1.1)]),
        story(*RETRIED, done=[execution(10.8, 2, "nb")]),
        story(*COMPLETED, done=[execution(1.1)]),
        story(*COMPLETED, done=[execution(10.5, took_s=9.0)]),
        story(*COMPLETED, done=[]),
    ],
    ids=["no cut", "tried again", "had acted", "still at work", "said to have acted"],
)
def test_a_story_as_it_should_be_has_no_fault(told: SessionRecord):
    assert faults(told) == []
    assert late_acts(told) == []
    assert told.is_over()


@pytest.mark.parametrize(
    ("told", "kinds"),
    [
        (story(*RETRIED, done=[execution(1.1), execution(10.8, 2, "nb")]), ["double"]),
        (story(*RETRIED, done=[execution(11.0), execution(10.8, 2, "nb")]), ["double"] * 2),
        (story(*COMPLETED, done=[execution(11.0)]), ["double"]),
        (story(intent(1.0, 1), fact(1.2, "tool.completed"), done=[execution(1.1, 2)]), ["double"]),
        (story(intent(1.0, 1), done=[execution(1.1)]), ["stuck"]),
        (story(*COMPLETED, done=[], ends=0), ["stuck"]),
        (story(*COMPLETED, done=[], ends=2), ["stuck"]),
        (story(*COMPLETED, done=[], answered=False), ["unanswered"]),
    ],
    ids=["twice", "twice and late", "late", "unintended", "open", "endless", "two ends", "silent"],
)
def test_every_broken_rule_is_found(told: SessionRecord, kinds: list[str]):
    assert [fault.kind for fault in faults(told)] == kinds


def test_what_a_node_does_after_its_session_was_taken_over_is_late():
    told = story(*COMPLETED, fact(10.7, "turn.failed", "na"), done=[execution(10.5)])
    assert [fault.kind for fault in late_acts(told)] == ["late"]
    assert [seen.type for seen in late_facts(told)] == ["turn.failed.v1"]


def test_a_session_record_lists_its_lines_in_the_order_of_time():
    told = story(*COMPLETED, done=[execution(1.1)])
    lines = timeline(told, since_s=1.0, marks={"the line is cut": 2.0})
    assert [float(line.split()[0]) for line in lines] == [
        -1.0,
        0.0,
        0.1,
        1.0,
        9.0,
        9.1,
        9.6,
        19.0,
        19.1,
    ]
    assert "EXECUTED call-1 attempt 1 by na" in lines[2]
