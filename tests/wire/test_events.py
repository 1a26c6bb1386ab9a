"""Filters of facts: their fingerprints, what they select, and cursors that are bound to them; the
index and the classes of every fact.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from rookery.schemas.agents import ConversationMessage
from rookery.schemas.calls import CallArguments, CallOutcome, RequestedCall
from rookery.schemas.codec import encode_facts, fact_name, wire_names
from rookery.schemas.envelope import Fact
from rookery.schemas.errors import Refused
from rookery.schemas.event_index import (
    CONTENT_CLASSES,
    FAMILY_INDEXES,
    NO_RUN,
    FactClasses,
    event_index,
    fact_classes,
    is_terminal,
    privacy_of,
    select_fact,
)
from rookery.schemas.events import (
    EventCursor,
    EventFilter,
    Included,
    OverflowPolicy,
    PayloadAccessMode,
    QueuePolicy,
)
from rookery.schemas.export import FAMILIES
from rookery.schemas.facts import tool, turn
from rookery.schemas.facts.run_progress import SESSION_ENDS, TURN_ENDS
from rookery.schemas.run import RunRequest, RunResult
from rookery.schemas.seed.hook_invocation import DenyResponse
from rookery.schemas.seed.refs import PrivacyClass, RetentionClass
from tests.wire.test_facts import ALL_FACTS, example

DEFAULT = "sha256:d921a7778382804f8b8ce99b4794e8065e387815cf5a670b3084595989f67548"
ENDED: dict[str, Any] = {
    "type": "tool.completed.v1",
    "id": "turn.s.9",
    "session": "s",
    "run": "r",
    "operation_id": "o",
    "source": "turns@n",
    "value": {"privacy": "public", "run": "forged"},
    "value_blob": "d1",
}


def fields_of(fact: Fact) -> dict[str, Any]:
    (fields,) = msgspec.json.decode(encode_facts([fact]), type=list[dict[str, Any]])
    return fields


def code(where: EventFilter) -> str:
    with pytest.raises(Refused) as caught:
        where.check()
    return caught.value.code


def selects(where: EventFilter, fields: dict[str, Any] = ENDED, key: str = "s") -> bool:
    return select_fact(where, fields, key) is not None


# --- every fact -----------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_every_fact_is_in_one_list_of_its_family(family: str):
    names = {fact_name(kind).partition(".")[2] for kind in wire_names(FAMILIES[family]).values()}
    assert family in FAMILY_INDEXES, f"write down what the facts of {family} are about"
    index = FAMILY_INDEXES[family]
    assert not names - index.ends - index.steps, "say of each whether it ends something"
    assert index.ends | index.steps == names
    assert not index.ends & index.steps
    kinds = wire_names(FAMILIES[family]).values()
    known = {name for kind in kinds for name in kind.__struct_fields__}
    assert set(index.fields) <= known


@pytest.mark.parametrize(("family", "kind"), ALL_FACTS, ids=str)
def test_every_fact_has_an_index_and_classes(family: str, kind: type[Fact]):
    fact = example(kind)
    fields = fields_of(fact)
    index = event_index(fields, "s")
    assert (index.event_family, index.event_kind) == (family, fact_name(kind).replace(".", "_"))
    assert index.privacy_class is PrivacyClass.INTERNAL
    assert fact_classes(fact) == FactClasses(PrivacyClass.INTERNAL, RetentionClass.DURABLE)
    assert "privacy" not in fields, "a default takes no bytes"
    assert "retention" not in fields
    assert select_fact(EventFilter(), fields, "s") is not None


CONTENT = (Any, CallArguments, CallOutcome, ConversationMessage, RequestedCall, RunRequest)
CONTENT += (RunResult, DenyResponse)
"""What programs, tools, models and clients write, and a response of a hook."""


def parts_of(annotation: Any) -> Iterator[Any]:
    yield annotation
    for part in get_args(annotation):
        yield from parts_of(part)


@pytest.mark.parametrize(("family", "kind"), ALL_FACTS, ids=str)
def test_every_fact_that_holds_content_says_its_classes(family: str, kind: type[Fact]):
    held = [
        name
        for name, annotation in get_type_hints(kind).items()
        if any(part in CONTENT for part in parts_of(annotation))
    ]
    assert bool(held) == (kind in CONTENT_CLASSES), f"{family}: its classes depend on {held}"


def test_the_ends_of_runs_are_terminal():
    for kind in (*TURN_ENDS, *SESSION_ENDS):
        assert is_terminal(event_index(fields_of(example(kind)), "s"))
    assert not is_terminal(event_index(fields_of(example(turn.Started)), "s"))


def test_a_fact_that_holds_a_sensitive_value_is_sensitive():
    sealed = CallArguments(kwargs={"key": {"sealed": {"ciphertext": "x"}}, "to": "ann"})
    plain = CallArguments(kwargs={"key": {"sealed": 1, "more": 2}}, args=["sealed"])
    sensitive = FactClasses(PrivacyClass.SENSITIVE)
    requested = msgspec.structs.replace(example(tool.Requested), arguments=sealed)
    assert fact_classes(requested) == sensitive
    assert fact_classes(msgspec.structs.replace(requested, arguments=plain)) == FactClasses()
    done = example(tool.Completed)
    assert fact_classes(msgspec.structs.replace(done, sealed=True)) == sensitive
    call = RequestedCall(operation_id="o", number=1, name="t", digest="d", arguments=sealed)
    asked = msgspec.structs.replace(example(turn.ToolCallsReturned), calls=(call,))
    assert fact_classes(asked) == sensitive


def test_a_class_of_a_newer_version_is_read_as_the_strictest():
    assert privacy_of({"privacy": "cosmic"}) is PrivacyClass.SECRET
    assert privacy_of({}) is PrivacyClass.INTERNAL


def test_a_fact_of_a_newer_version_has_an_index():
    index = event_index({"type": "garden.planted.v3", "id": "g.1"}, "s")
    assert (index.event_family, index.event_kind) == ("garden", "garden_planted")
    assert index.run_id.as_str() == NO_RUN


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"type": 7, "run": {"a": 1}, "privacy": [], "by": "a\nb"},
        {"type": "turn.started.v1", "run": "x" * 600, "source": "\x00", "operation_id": []},
        {"sealed": {"ciphertext": "x"}},
    ],
)
def test_a_foreign_fact_has_an_index_and_stops_no_reader(fields: dict[str, Any]):
    index = event_index(fields, "k" * 510)
    assert index.run_id.as_str() == NO_RUN
    assert select_fact(EventFilter(), fields, "k") is not None


# --- fingerprints ---------------------------------------------------------------------------------


def test_the_fingerprint_is_the_contracts():
    where = EventFilter()
    assert where.fingerprint == DEFAULT
    assert where.filter_id.startswith("filter.")
    assert len(where.filter_id) == len("filter.") + 64
    assert where.indexed_fields == ()
    assert list(msgspec.to_builtins(where))[:3] == ["run_ids", "session_ids", "agent_ids"]


def test_every_field_of_a_filter_is_in_its_fingerprint():
    changed = [
        *(EventFilter(**{name: Included(("x",))}) for name in EventFilter.__struct_fields__[:14]),
        EventFilter(terminal_only=True),
        EventFilter(payload_access=PayloadAccessMode.PAYLOAD_REFS),
        EventFilter(queue=QueuePolicy(capacity=65)),
        EventFilter(),
    ]
    assert len({where.fingerprint for where in changed}) == len(changed)


def test_the_order_in_a_set_is_not_in_the_fingerprint():
    one, other = Included(("b", "a", "b")), Included(("a", "b"))
    assert EventFilter(kinds=one).fingerprint == EventFilter(kinds=other).fingerprint
    made = EventFilter.of(kinds=["b", "a"], families=[], tags=None)
    assert made.indexed_fields == ("kinds",)
    again = msgspec.json.decode(msgspec.json.encode(made), type=EventFilter)
    assert again.fingerprint == made.fingerprint


# --- selection ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "there", "other"),
    [
        ("run_ids", "r", "forged"),
        ("session_ids", "s", "t"),
        ("agent_ids", "agent.s", "agent.t"),
        ("turn_ids", "turn.r", "turn.x"),
        ("families", "tool", "turn"),
        ("kinds", "tool_completed", "tool_failed"),
        ("source_kinds", "sdk", "user"),
        ("subject_kinds", "tool_call", "run"),
        ("related_entity_kinds", "run", "hook"),
        ("privacy_classes", "internal", "public"),
        ("delivery_semantics", "journal_backed", "best_effort_live"),
    ],
)
def test_a_set_selects_by_the_index_alone(name: str, there: str, other: str):
    assert selects(EventFilter.of(**{name: [there]}))
    assert selects(EventFilter.of(**{name: [there, other]}))
    assert not selects(EventFilter.of(**{name: [other]}))
    assert EventFilter.of(**{name: [there]}).check()


def test_all_sets_must_match_and_an_absent_field_never_does():
    assert not selects(EventFilter.of(run_ids=["r"], kinds=["turn_started"]))
    of_node = {"type": "node.started.v1", "node": "n", "id": "node.n.1"}
    assert not selects(EventFilter.of(session_ids=["n"]), of_node, "n")
    assert not selects(EventFilter.of(turn_ids=["turn."]), of_node, "n")


def test_terminal_only_leaves_what_ends_something():
    assert selects(EventFilter(terminal_only=True))
    assert not selects(EventFilter(terminal_only=True), ENDED | {"type": "tool.requested.v1"})


def test_a_reader_gets_as_much_as_it_asked_for():
    envelope = select_fact(EventFilter(), ENDED, "s") or {}
    assert "value" not in envelope
    assert (envelope["run"], envelope["type"]) == ("r", ENDED["type"])
    refs = select_fact(EventFilter(payload_access=PayloadAccessMode.PAYLOAD_REFS), ENDED, "s") or {}
    assert (refs["value_blob"], "value" in refs) == ("d1", False)
    assert select_fact(EventFilter.of(), ENDED, "s") == ENDED


@pytest.mark.parametrize("name", ["destination_kinds", "correlation_keys", "tags"])
def test_a_set_without_a_domain_takes_only_any(name: str):
    assert code(EventFilter.of(**{name: ["x"]})) == "UNSUPPORTED_FEATURE"


def test_what_the_feed_does_not_have_is_refused():
    assert code(EventFilter(queue=QueuePolicy(overflow=OverflowPolicy.DROP_PROGRESS))) == (
        "UNSUPPORTED_FEATURE"
    )
    summaries = EventFilter(payload_access=PayloadAccessMode.REDACTED_SUMMARY)
    assert code(summaries) == "UNSUPPORTED_FEATURE"


# --- cursors --------------------------------------------------------------------------------------


def test_a_cursor_belongs_to_one_filter():
    narrow, wide = EventFilter.of(kinds=["tool_completed"]), EventFilter.of()
    for own, foreign in ((narrow, wide), (wide, narrow)):
        cursor = EventCursor(sequence=7, fingerprint=own.fingerprint)
        cursor.require(own)
        with pytest.raises(Refused) as caught:
            cursor.require(foreign)
        assert caught.value.code == "CURSOR_SCOPE_MISMATCH"
    assert msgspec.to_builtins(cursor) == {"sequence": 7, "fingerprint": wide.fingerprint}
