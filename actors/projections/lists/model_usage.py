"""What the runs of a realm have used of models today, folded from the facts of their questions.

A question that is open counts by its estimate, on whichever node it is asked, and so does one whose
answer was lost or cut. A day is one of UTC, by the time of the facts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import Struct

from rookery.actors.projections.checkpoint import version_of
from rookery.actors.projections.pages import Unpaged
from rookery.bus.ports import StoredMessage
from rookery.schemas.agents import ModelEstimate, ModelUsage, RequestSent
from rookery.schemas.codec import fact_tag
from rookery.schemas.facts import model

__all__ = ["UsageProjection"]

FOLDS: Final = 1
DAY_MS: Final = 86_400_000
_FAMILY: Final = b'"model.'
_REQUESTED, _ANSWERED = fact_tag(model.Requested), fact_tag(model.Answered)
_FAILED, _LOST = fact_tag(model.Failed), fact_tag(model.Lost)


class ModelFactView(Struct, gc=False):
    """The fields of facts of models that are counted."""

    type: str
    at_ms: int = 0
    estimate: Any = None
    usage: Any = None
    sent: Any = ""


class _Usage(Struct, frozen=True):
    """A checkpoint."""

    days: dict[int, ModelUsage]
    open: dict[str, tuple[int, ModelUsage]]


_decode = msgspec.json.Decoder(list[ModelFactView]).decode


class UsageProjection(Unpaged):
    """The use of models in the last two days, and the open questions."""

    name = "models"
    version = version_of(FOLDS, ModelUsage)

    def __init__(self) -> None:
        self._days: dict[int, ModelUsage] = {}
        self._open: dict[str, tuple[int, ModelUsage]] = {}
        """By session, the day and the estimate of its open question."""

    def today(self, now_ms: int) -> ModelUsage:
        """What was used on the day of ``now_ms``, with what was asked then and is open."""
        today = now_ms // DAY_MS
        found = self._days.get(today, ModelUsage())
        for day, estimate in self._open.values():
            found = found.plus(estimate) if day == today else found
        return found

    def apply(self, stored: StoredMessage) -> None:
        """Fold a message of the journal."""
        if stored.entity.family != "turn" or _FAMILY not in stored.body:
            return
        try:
            facts = _decode(stored.body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return  # Sealed or damaged.
        for fact in facts:
            self._fold(stored.entity.key, fact)

    def parts(self) -> Iterator[bytes]:
        yield msgspec.msgpack.encode(_Usage(self._days, self._open))

    def empty(self) -> UsageProjection:
        return UsageProjection()

    def restore(self, part: bytes) -> None:
        stored = msgspec.msgpack.decode(part, type=_Usage)
        self._days |= stored.days
        self._open |= stored.open

    def _fold(self, session: str, fact: ModelFactView) -> None:
        if fact.type == _REQUESTED:
            expected = msgspec.convert(fact.estimate or {"input_tokens": 0}, ModelEstimate)
            self._open[session] = fact.at_ms // DAY_MS, expected.as_maybe_paid
        elif fact.type in (_ANSWERED, _FAILED, _LOST):
            _, used = self._open.pop(session, (0, ModelUsage()))
            if fact.type == _ANSWERED:
                used = msgspec.convert(fact.usage or {}, ModelUsage)
            elif fact.type == _FAILED and fact.sent != RequestSent.MAYBE:
                return
            self._add(fact.at_ms // DAY_MS, used)

    def _add(self, day: int, used: ModelUsage) -> None:
        self._days[day] = self._days.get(day, ModelUsage()).plus(used)
        while len(self._days) > 2:
            del self._days[min(self._days)]
