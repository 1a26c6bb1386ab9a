"""The timeline of a run on a terminal, and the state of each actor between two facts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum, auto
from operator import attrgetter
from textwrap import wrap
from typing import Final, NamedTuple, get_args

from rich.text import Text

from rookery.ops.cli.output import LAYOUT, clock_time, printable
from rookery.ops.cli.rendering.fact_words import LANES, Names, RunFact, fact_words
from rookery.schemas.calls import WAITING_FOR_TASK
from rookery.schemas.codec import fact_name
from rookery.schemas.envelope import Fact
from rookery.schemas.facts import model, session, turn
from rookery.schemas.facts.model import ModelEnd
from rookery.schemas.facts.run_progress import (
    SESSION_ENDS,
    TURN_ENDS,
    OpenCallPhase,
    OpenRunCall,
    RunProgress,
)
from rookery.schemas.replies import RunView

__all__ = [
    "GLYPHS",
    "PLAIN_GLYPHS",
    "Glyphs",
    "LaneState",
    "TimelineLanes",
    "draw_timeline",
    "duration",
]

# --- timeline lanes -------------------------------------------------------------------------------

# The state of each actor of a run between two facts: at work, waiting, or not involved.
#
# The lanes of a timeline show it. Nothing is decided by it.


_LANES: Final = tuple(dict.fromkeys(LANES.values()))
TOOLS: Final = "tools"
_TOOLS: Final = _LANES.index(TOOLS)
SURFACES_MAX: Final = 3
"""Surfaces with a lane; the calls of others are in that of the tools, by their names."""


class LaneState(Enum):
    """The state of an actor."""

    AWAY = auto()
    AT_WORK = auto()
    WAITS = auto()


MODEL_ENDS: Final[tuple[type[Fact], ...]] = get_args(ModelEnd)
_AWAY, _AT_WORK, _WAITS = LaneState.AWAY, LaneState.AT_WORK, LaneState.WAITS
_KINDS: Final[Mapping[type[Fact], Mapping[str, LaneState]]] = {
    session.InputAccepted: {"admission": _WAITS},
    session.RunPrepared: {"admission": _AT_WORK},
    session.QueuedRunDrained: {"admission": _AT_WORK},
    **{kind: {"admission": _AWAY} for kind in SESSION_ENDS},
    turn.Started: {"turns": _AT_WORK},
    turn.PrimitiveApplied: {"sandbox": _AT_WORK},
    model.Requested: {"turns": _WAITS, "sandbox": _AWAY},
    **{kind: {"turns": _AT_WORK, "sandbox": _AWAY} for kind in MODEL_ENDS},
    turn.ToolCallsReturned: {"turns": _WAITS, "sandbox": _WAITS},
    turn.ToolCallsResolved: {"turns": _AT_WORK, "sandbox": _AT_WORK},
    turn.Parked: {"turns": _WAITS, "sandbox": _AWAY},
    **{kind: {"admission": _AWAY, "turns": _AWAY, "sandbox": _AWAY} for kind in TURN_ENDS},
}
_STATE_CHANGES: Final = {fact_name(kind): changes for kind, changes in _KINDS.items()}


class TimelineLanes:
    """The state of every actor after the facts so far."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._surfaces = tuple(names.surfaces[:SURFACES_MAX])
        self.names = (*_LANES[: _TOOLS + 1], *self._surfaces, *_LANES[_TOOLS + 1 :])
        """In their order: a surface has one beside that of the tools."""
        self._states = dict.fromkeys(self.names, LaneState.AWAY)
        self._progress = RunProgress()
        self._asks_model = False

    def apply(self, fact: RunFact) -> None:
        self._progress.apply_fields(fact.fields)
        self._states |= _STATE_CHANGES.get(fact.kind, {})
        if fact.kind.startswith("model."):
            self._asks_model = fact.kind == fact_name(model.Requested)
        self._states["approvals"] = _WAITS if self._undecided() else _AWAY
        for lane in (TOOLS, *self._surfaces):
            self._states[lane] = _AWAY
        for call in self._calls(*_CALLED, OpenCallPhase.AWAITED):
            lane = self._lane_of(call.operation_id)
            if call.phase is OpenCallPhase.INTENDED or call.waits_for == WAITING_FOR_TASK:
                self._states[lane] = _AT_WORK
            elif call.phase in _CALLED and self._states[lane] is _AWAY:
                self._states[lane] = _WAITS

    def state_of(self, lane: str) -> LaneState:
        return self._states[lane]

    def lane_of(self, fact: RunFact) -> str:
        """The lane of a fact; of a call it is that of its surface."""
        if fact.lane != TOOLS:
            return fact.lane
        return self._lane_of(fact.fields.get("operation_id", ""))

    def _lane_of(self, operation_id: str) -> str:
        surface = self._names.surface_of(operation_id)
        return surface if surface in self._surfaces else TOOLS

    @property
    def waited_for(self) -> str:
        """What happens until the next fact."""
        if self._states["admission"] is _WAITS:
            return "waits for the session"
        if undecided := self._undecided():
            return f"waits for approval of {self._named(undecided)}"
        if later := self._calls(OpenCallPhase.INTENDED) or self._calls(OpenCallPhase.AWAITED):
            return f"waits for {self._named(later)}"
        if unknown := self._calls(OpenCallPhase.RECOVERY_REQUIRED):
            return f"waits for an operator to resolve {self._named(unknown)}"
        if called := self._calls(*_CALLED):
            return f"waits for a slot for {self._named(called)}"
        computes = "computes" if self._states["sandbox"] is _AT_WORK else "waits"
        return "waits for its model" if self._asks_model else computes

    def _undecided(self) -> list[OpenRunCall]:
        return [call for call in self._progress.calls.values() if call.awaits_decision]

    def _calls(self, *phases: OpenCallPhase) -> list[OpenRunCall]:
        """The calls in these phases, in the order in which they entered them."""
        calls = [call for call in self._progress.calls.values() if call.phase in phases]
        return sorted(calls, key=attrgetter("since_ms"))

    def _named(self, calls: Iterable[OpenRunCall]) -> str:
        return ", ".join(self._names.of(call.operation_id) for call in calls)


_CALLED: Final = (OpenCallPhase.REQUESTED, OpenCallPhase.INTENDED, OpenCallPhase.RECOVERY_REQUIRED)
"""The phases of a call that its tool knows of."""


# --- timeline -------------------------------------------------------------------------------------

# The timeline of a run on a terminal: a lane for each actor, a line for each fact and each wait.
#
# Times are relative to the first fact, so the same facts always make the same drawing. Long lines
# are wrapped. A narrow terminal shows the actors by name instead of lanes.


LONG_MS: Final = 100
"""A shorter time between two facts has no line."""
TIME_WIDTH: Final = 10
WORDS_MIN: Final = 16
_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000


class Glyphs(NamedTuple):
    fact: str
    at_work: str
    waits: str

    def of(self, state: LaneState) -> str:
        return {LaneState.AT_WORK: self.at_work, LaneState.WAITS: self.waits}.get(state, " ")


GLYPHS: Final = Glyphs("●", "│", "┊")
PLAIN_GLYPHS: Final = Glyphs("*", "|", ":")
"""For terminals without Unicode."""


class _TimelineLayout(NamedTuple):
    """The width and the titles of the lanes; no titles if there are no lanes."""

    lane_width: int
    titles: Mapping[str, str]


_SHORT: Final = ("adm", "turn", "tool", "appr", "box")
_LAYOUTS: Final = (
    (110, _TimelineLayout(11, dict(zip(_LANES, _LANES, strict=True)))),
    (64, _TimelineLayout(5, dict(zip(_LANES, _SHORT, strict=True)))),
    (0, _TimelineLayout(0, {})),
)
"""Smallest terminal width and layout; the first that fits is used."""
_STYLES: Final = {
    "admission": "cyan",
    "turns": "green",
    "tools": "magenta",
    "approvals": "yellow",
    "sandbox": "blue",
}
_ALARMING: Final = ("failed", "refused", "cancelled", "recovery_required", "parked")


def draw_timeline(
    view: RunView, facts: Sequence[RunFact], width: int, glyphs: Glyphs = GLYPHS
) -> Iterator[Text]:
    """The lines of a run's timeline; only unbreakable words exceed ``width``."""
    return _Drawing(view, facts, width, glyphs).lines()


def duration(ms: int) -> str:
    """A duration in at most two units."""
    if ms < _SECOND:
        return f"{ms} ms"
    if ms < _MINUTE:
        return f"{ms / _SECOND:.3f} s"
    if ms < _HOUR:
        return f"{ms // _MINUTE} m {ms % _MINUTE // _SECOND:02} s"
    if ms < _DAY:
        return f"{ms // _HOUR} h {ms % _HOUR // _MINUTE:02} m"
    return f"{ms // _DAY} d {ms % _DAY // _HOUR:02} h"


class _Drawing:
    def __init__(self, view: RunView, facts: Sequence[RunFact], width: int, glyphs: Glyphs) -> None:
        self._view, self._facts, self._width, self._glyphs = view, facts, width, glyphs
        self._names = Names(facts)
        self._lanes = TimelineLanes(self._names)
        more = len(self._lanes.names) - len(_LANES)
        self._layout = next(
            layout
            for least, layout in _LAYOUTS
            if not least or width >= least + more * layout.lane_width
        )
        self._position_width = max((len(fact.position) for fact in facts), default=4)
        before = TIME_WIDTH + 2 + self._position_width + 2
        before += self._layout.lane_width * len(self._lanes.names)
        if not self._layout.titles:
            before = 2
        self._before, self._words_width = before, max(WORDS_MIN, width - before)

    def lines(self) -> Iterator[Text]:
        yield self._title()
        begun_ms = last_ms = self._facts[0].at_ms if self._facts else 0
        for fact in self._facts:
            if fact.at_ms - last_ms >= LONG_MS:
                yield from self._wait(f"{duration(fact.at_ms - last_ms)}: {self._lanes.waited_for}")
            yield from self._fact(fact, fact.at_ms - begun_ms)
            last_ms = fact.at_ms
        if (wait := self._view.waits_for) is not None:
            since = duration(max(0, wait.since_ms - begun_ms))
            until = "" if wait.until_ms is None else f" until {clock_time(wait.until_ms)}"
            yield from self._wait(f"since +{since}: waits for {wait.what}{until}")
            yield from self._hint("who", wait.who)
            yield from self._hint("type", wait.command)

    def _title(self) -> Text:
        layout = self._layout
        if not layout.titles:
            return Text("TIME  FACT  ACTOR", style="bold")
        head = f"{'TIME':>{TIME_WIDTH}}  {'FACT':>{self._position_width}}  "
        named = (layout.titles.get(lane, lane) for lane in self._lanes.names)
        titles = "".join(f"{title[: layout.lane_width - 1]:{layout.lane_width}}" for title in named)
        return Text((head + titles).rstrip(), style="bold")

    def _fact(self, fact: RunFact, since_ms: int) -> Iterator[Text]:
        self._lanes.apply(fact)
        words = fact_words(fact, self._names)
        style = "red" if fact.kind.rpartition(".")[2] in _ALARMING else ""
        time = f"+{duration(since_ms)}"
        if not self._layout.titles:
            lane = self._lanes.lane_of(fact)
            head = f"{time}  {fact.position}  {self._glyphs.fact} {lane}"
            yield Text(head, style=_STYLES.get(lane, _STYLES[TOOLS]))
            yield from (Text(f"  {line}", style=style) for line in self._folded(words))
            return
        head = f"{time:>{TIME_WIDTH}}  {fact.position:>{self._position_width}}  "
        yield from self._rows(head, words, style, self._lanes.lane_of(fact))

    def _wait(self, words: str) -> Iterator[Text]:
        if not self._layout.titles:
            yield from (Text(f"{self._glyphs.waits} {line}") for line in self._folded(words))
            return
        yield from self._rows(" " * (TIME_WIDTH + 4 + self._position_width), words, "yellow", "")

    def _hint(self, label: str, words: str) -> Iterator[Text]:
        """Words to copy; ids are never broken."""
        first, rest = f"{label:6}", " " * 6
        for line in wrap(
            first + words,
            self._width,
            subsequent_indent=rest,
            break_long_words=False,
            break_on_hyphens=False,
        ):
            yield Text(line, style="bold")

    def _rows(self, head: str, words: str, style: str, at: str) -> Iterator[Text]:
        """Wrapped ``words`` beside the lanes; the first marks the fact in the lane ``at``."""
        for line in self._folded(words):
            row = Text().append(head, style="dim")
            for lane in self._lanes.names:
                state = self._lanes.state_of(lane)
                glyph = self._glyphs.fact if lane == at else self._glyphs.of(state)
                row.append(
                    f"{glyph:{self._layout.lane_width}}", style=_STYLES.get(lane, _STYLES[TOOLS])
                )
            row.append(line, style=style)
            row.rstrip()
            yield row
            head, at = " " * len(head), ""

    def _folded(self, words: str) -> list[str]:
        return wrap(printable(words, LAYOUT), self._words_width, break_on_hyphens=False) or [""]
