"""The loader: it fills a journal with runs, as a node leaves them that has made them.

Every message is a copy of a recorded one, and passes the journal's own appender with its
expectation, its chain digest and its header. Sessions make their runs side by side, one message of
each at a time. Afterwards the journal has the watermarks of a node that stopped with no work left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final

from rookery.actors.kernel import save_idle_watermark
from rookery.bus.clock import SystemClock
from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.ports import PARTITIONS, Appended, AppendOutcome, AppendRequest
from rookery.ops.bench.growth.recorded_session import (
    CYCLE_RUNS,
    CopyContext,
    MessageTemplate,
    RecordedSession,
)
from rookery.schemas.digest import ZERO_CHAIN, chain
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import Failed

__all__ = ["load_runs", "session_name"]

_GROUP: Final = 250
"""Sessions whose messages are in flight together; while the server stores those of one group, the
next ones are made."""
_RUN_MS: Final = 40
"""Between two runs of the realm, in the journal's past."""
_CYCLES_MAX: Final = 1 << 20
"""Of one session, so that ids differ."""


def session_name(number: int, batch: int = 0) -> str:
    return f"grown-{batch}-{number}"


async def load_runs(
    url: str, recorded: RecordedSession, *, runs: int, sessions: int, batch: int = 0
) -> int:
    """Append so many runs of new sessions, rounded up to whole cycles; return their number. No node
    may serve the realm meanwhile. Each ``batch`` has sessions of its own."""
    sessions = min(sessions, -(-runs // CYCLE_RUNS))
    cycles = -(-runs // (sessions * CYCLE_RUNS))
    made = sessions * (cycles * CYCLE_RUNS + 1)
    bus = JetStreamBus(url, sync="default")
    await bus.start()
    try:
        await bus.journal.begin_terms(frozenset(range(PARTITIONS)))
        copies = [
            _SessionCopy(
                recorded,
                session_name(number, batch),
                number,
                cycles=cycles,
                span_ms=made * _RUN_MS,
            )
            for number in range(sessions)
        ]
        appender = _Appender(bus)
        groups = [copies[first : first + _GROUP] for first in range(0, sessions, _GROUP)]
        if len(groups) == 1:
            groups = [copies[0::2], copies[1::2]]
        await asyncio.gather(*map(appender.append_all, filter(None, groups)))
        await save_idle_watermark(bus)
    finally:
        await bus.stop()
    return made


class _SessionCopy:
    """A session that is being written."""

    def __init__(
        self, recorded: RecordedSession, name: str, number: int, *, cycles: int, span_ms: int
    ) -> None:
        """``span_ms``: from its first run to its last."""
        self.name = name
        self._recorded, self._number, self._cycles = recorded, number, cycles
        begin_ms = SystemClock().now_ms() - span_ms + number * _RUN_MS
        self._shift_ms = begin_ms - recorded.begin_ms
        self._cycle_ms = max(recorded.cycle_ms, span_ms // cycles)
        self._own = CopyContext(
            session=name.encode(),
            shift_ms=self._shift_ms,
            unique=number * _CYCLES_MAX,
            uuids={},
            fact_shifts=dict.fromkeys(recorded.facts, 0),
            record_shift=0,
        )
        self.messages = self._all()
        self.last: dict[str, tuple[int, str]] = {}
        """By family: sequence and chain digest of the newest message."""

    def next_append(self, message_id: str) -> AppendRequest | None:
        """The next message; ``None`` after the last."""
        template = next(self.messages, None)
        if template is None:
            return None
        body = template.copy(self._own)
        sequence, digest = self.last.get(template.family, (0, ZERO_CHAIN))
        return AppendRequest(
            EntityId(template.family, self.name),
            sequence,
            message_id,
            body,
            chain(digest, body),
            kinds=template.kinds,
        )

    def on_appended(self, stored: Appended) -> None:
        append = stored.append
        self.last[append.entity.family] = stored.sequence, append.chain
        if append.entity.family == "turn":
            self._own.last_turn_sequence = stored.sequence

    def _all(self) -> Iterator[MessageTemplate]:
        yield from self._recorded.opening
        for cycle in range(self._cycles):
            if cycle:
                self._begin_cycle(cycle)
            yield from self._recorded.cycle
        yield from self._recorded.closing

    def _begin_cycle(self, cycle: int) -> None:
        recorded, before = self._recorded, self._own
        self._own = CopyContext(
            session=before.session,
            shift_ms=self._shift_ms + cycle * self._cycle_ms,
            unique=self._number * _CYCLES_MAX + cycle,
            uuids={own: before.uuid(last) for own, last in recorded.renamed.items()},
            fact_shifts={name: cycle * count for name, count in recorded.facts.items()},
            record_shift=cycle * recorded.records,
            last_turn_sequence=before.last_turn_sequence,
        )


class _Appender:
    """Appends the next message of each session of a group, then waits for all of them."""

    def __init__(self, bus: JetStreamBus) -> None:
        self._bus = bus
        self._name = bus.connection.client.new_inbox()
        self._count = 0

    async def append_all(self, copies: Sequence[_SessionCopy]) -> None:
        while True:
            appends = {id(one): one for one in map(self._next, copies) if one is not None}
            if not appends:
                return
            await self._append(list(appends.values()), {copy.name: copy for copy in copies})

    def _next(self, copy: _SessionCopy) -> AppendRequest | None:
        self._count += 1
        return copy.next_append(f"{self._name}.{self._count}")

    async def _append(
        self, appends: Sequence[AppendRequest], copies: dict[str, _SessionCopy]
    ) -> None:
        settled: asyncio.Queue[list[AppendOutcome]] = asyncio.Queue()
        self._bus.journal.append(appends, settled.put_nowait)
        left = len(appends)
        while left:
            for outcome in await settled.get():
                if not isinstance(outcome, Appended):
                    raise Failed("NODE_FAILED", f"a loaded message was not stored: {outcome}")
                copies[outcome.append.entity.key].on_appended(outcome)
                left -= 1
