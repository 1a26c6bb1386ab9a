"""Filters of facts by their index, and cursors that are bound to a filter.

A filter is the contract's: 14 sets, each ``"any"`` or ``{"include": [...]}``. It reads the index of
a fact (``event_index``) and nothing else. A cursor has the fingerprint of its filter, and no other
filter continues from it: neither a wider one nor a narrower one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from enum import StrEnum
from hashlib import sha256
from typing import Final, Literal, TypeAlias

import msgspec

from rookery.schemas.errors import Refused
from rookery.schemas.ids import TypedText
from rookery.schemas.seed.records import JOURNAL_BACKED, EventIndexProjection

__all__ = [
    "EventCursor",
    "EventFilter",
    "Included",
    "OverflowPolicy",
    "PayloadAccessMode",
    "QueuePolicy",
]

ANY: Final = "any"
_CURSOR: Final = re.compile(r"([0-9]{1,18})\.([0-9]{1,9})@(sha256:[0-9a-f]{64})")


class Included(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The values that a set has; it never matches a field that is absent."""

    include: tuple[str, ...]


FilterSet: TypeAlias = Literal["any"] | Included


class PayloadAccessMode(StrEnum):
    """How much of a fact its reader gets."""

    ENVELOPE_ONLY = "envelope_only"
    REDACTED_SUMMARY = "redacted_summary"
    PAYLOAD_REFS = "payload_refs"
    FULL_PAYLOAD_IF_POLICY_ALLOWS = "full_payload_if_policy_allows"


class OverflowPolicy(StrEnum):
    DROP_NON_TERMINAL = "drop_non_terminal"
    DROP_PROGRESS = "drop_progress"
    SUMMARIZE_AND_CONTINUE = "summarize_and_continue"
    FAIL_SUBSCRIBER = "fail_subscriber"
    BACKPRESSURE_CALLER = "backpressure_caller"


class QueuePolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of a live buffer. The feed is the journal and has none, so only the default is accepted."""

    capacity: int = 64
    terminal_reserve: int = 1
    overflow: OverflowPolicy = OverflowPolicy.DROP_NON_TERMINAL


class EventFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which facts, and how much of each. The order of the fields is the contract's."""

    run_ids: FilterSet = ANY
    session_ids: FilterSet = ANY
    agent_ids: FilterSet = ANY
    turn_ids: FilterSet = ANY
    families: FilterSet = ANY
    kinds: FilterSet = ANY
    source_kinds: FilterSet = ANY
    destination_kinds: FilterSet = ANY
    subject_kinds: FilterSet = ANY
    related_entity_kinds: FilterSet = ANY
    correlation_keys: FilterSet = ANY
    tags: FilterSet = ANY
    privacy_classes: FilterSet = ANY
    delivery_semantics: FilterSet = ANY
    terminal_only: bool = False
    payload_access: PayloadAccessMode = PayloadAccessMode.ENVELOPE_ONLY
    queue: QueuePolicy = QueuePolicy()

    @classmethod
    def of(
        cls,
        *,
        terminal_only: bool = False,
        payload_access: PayloadAccessMode = PayloadAccessMode.FULL_PAYLOAD_IF_POLICY_ALLOWS,
        **sets: Iterable[str] | None,
    ) -> EventFilter:
        """The filter with these sets; an empty one, and ``None``, is any."""
        included = {
            name: Included(tuple(sorted(set(values))))
            for name, values in ((name, tuple(given or ())) for name, given in sets.items())
            if values
        }
        made = cls(terminal_only=terminal_only, payload_access=payload_access)
        return msgspec.structs.replace(made, **included)

    @property
    def fingerprint(self) -> str:
        """``sha256:`` of the JSON in the order of the fields; sets are sorted."""
        sets = {name: self._sorted(name) for name in _SETS}
        text = msgspec.json.encode(msgspec.structs.replace(self, **sets))
        return f"sha256:{sha256(text).hexdigest()}"

    @property
    def filter_id(self) -> str:
        return f"filter.{sha256(self.fingerprint.encode()).hexdigest()}"

    @property
    def indexed_fields(self) -> tuple[str, ...]:
        """The sets that are not any."""
        return tuple(name for name in _SETS if getattr(self, name) != ANY)

    def check(self) -> EventFilter:
        """Refuse what this version has no domain for: it would match nothing, silently."""
        for name in _WITHOUT_DOMAIN:
            if getattr(self, name) != ANY:
                text = f"facts have no {name}: the set can only be any"
                raise Refused("UNSUPPORTED_FEATURE", text)
        if self.queue != QueuePolicy():
            text = "the feed is the journal and has no queue: leave the queue as it is"
            raise Refused("UNSUPPORTED_FEATURE", text)
        if self.payload_access is PayloadAccessMode.REDACTED_SUMMARY:
            text = "facts have no summaries: ask for envelope_only or payload_refs"
            raise Refused("UNSUPPORTED_FEATURE", text)
        return self

    def only(self, name: str) -> str | None:
        """The one value of a set, if it has exactly one: what the server can select by."""
        found = getattr(self, name)
        if isinstance(found, Included) and len(found.include) == 1:
            return found.include[0]
        return None

    def matches(self, index: EventIndexProjection, *, is_terminal: bool) -> bool:
        """Whether a fact with this index is selected."""
        if self.terminal_only and not is_terminal:
            return False
        return all(
            _contains(getattr(self, name), values(index)) for name, values in _VALUES.items()
        )

    def _sorted(self, name: str) -> FilterSet:
        found: FilterSet = getattr(self, name)
        return Included(tuple(sorted(set(found.include)))) if isinstance(found, Included) else found


def _contains(wanted: FilterSet, values: Iterable[str | None]) -> bool:
    return not isinstance(wanted, Included) or any(value in wanted.include for value in values)


def _text(value: TypedText | None) -> str | None:
    """An id as text; ``None`` if it is absent."""
    return None if value is None else value.as_str()


_VALUES: Final[dict[str, Callable[[EventIndexProjection], tuple[str | None, ...]]]] = {
    "run_ids": lambda index: (_text(index.run_id),),
    "session_ids": lambda index: (_text(index.session_id),),
    "agent_ids": lambda index: (_text(index.agent_id),),
    "turn_ids": lambda index: (_text(index.turn_id),),
    "families": lambda index: (index.event_family,),
    "kinds": lambda index: (index.event_kind,),
    "source_kinds": lambda index: (index.source.kind.value,),
    "subject_kinds": lambda index: (index.subject_ref.kind.value,),
    "related_entity_kinds": lambda index: tuple(one.kind.value for one in index.related_refs),
    "privacy_classes": lambda index: (index.privacy_class.value,),
    "delivery_semantics": lambda index: (index.delivery_semantics,),
}
_WITHOUT_DOMAIN: Final = ("destination_kinds", "correlation_keys", "tags")
_SETS: Final = EventFilter.__struct_fields__[:14]
assert {*_VALUES, *_WITHOUT_DOMAIN} == {*_SETS}
assert JOURNAL_BACKED == "journal_backed"


class EventCursor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """After which fact a reader continues, with which filter."""

    sequence: int
    """Of the message."""
    fingerprint: str
    fact: int = 0
    """Number of the fact in the message, from 1; 0: the whole message was read."""

    @property
    def text(self) -> str:
        """``<sequence>.<fact>@<fingerprint>``, for a command line."""
        return f"{self.sequence}.{self.fact}@{self.fingerprint}"

    @classmethod
    def parse(cls, text: str) -> EventCursor:
        matched = _CURSOR.fullmatch(text)
        if matched is None:
            raise Refused(
                "INVALID_ARGUMENT",
                f"{text[:80]!r} is no cursor: <sequence>.<fact>@sha256:<64 hex digits>",
            )
        return cls(sequence=int(matched[1]), fact=int(matched[2]), fingerprint=matched[3])

    def require(self, where: EventFilter) -> None:
        """Refuse another filter than that of the cursor."""
        if self.fingerprint != where.fingerprint:
            raise Refused(
                "CURSOR_SCOPE_MISMATCH",
                f"the cursor is of filter {self.fingerprint[:20]}, not {where.fingerprint[:20]}",
                hint="continue with the same filter, or begin without a cursor",
            )
