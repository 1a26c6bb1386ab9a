"""The loader: it fills a journal with copies of a recorded session's runs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from rookery.actors.kernel.runtime import save_idle_watermark
from rookery.bus.client import Client
from rookery.bus.clock import SystemClock
from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.ports import (
    PARTITIONS,
    Appended,
    AppendOutcome,
    AppendRequest,
    Filter,
    StoredMessage,
)
from rookery.schemas.codec import fact_tag
from rookery.schemas.digest import ZERO_CHAIN, chain
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import Failed
from rookery.schemas.facts import turn

__all__ = [
    "CYCLE_RUNS",
    "RECORDED",
    "CopyContext",
    "MessageTemplate",
    "RecordedSession",
    "load_runs",
    "record_session",
    "session_name",
]

# --- recorded session -----------------------------------------------------------------------------

# A recorded session: the messages of real runs, from which a loader makes as many as it needs.
#
# One session of a real node makes runs of every kind, and its messages are read back from the
# journal. A copy of a message has other ids, times, sessions and numbers of facts, and is otherwise
# equal byte by byte. The first run opens the session; all others can follow each other any number
# of times.


RECORDED: Final = "growth-recorded"
"""The name of the session."""
_PLAIN, _CALLING, _ASKING, _FAILING = "1 + 1", "x = same(1)\nsame(x)", "weighed(2)", "1 // 0"
_CYCLE: Final = (*[_PLAIN] * 8, _CALLING, *[_PLAIN] * 4, _ASKING, *[_PLAIN] * 3, _FAILING, _PLAIN)
CYCLE_RUNS: Final = len(_CYCLE)
_FAMILIES: Final = ("session", "turn", "approval")
_DAY_MS: Final = 86_400_000
_QUIET_S: Final = 0.2
_POLL_S: Final = 0.01
_POLLS_MAX: Final = 2_000

_PARTS: Final = re.compile(
    rb"(?P<uuid>[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12})"
    rb"|(?P<family>session|turn|approval)\." + RECORDED.encode() + rb"\.(?P<fact>[0-9]+)\b"
    rb'|"journal_seq":(?P<record>[0-9]+)'
    rb'|"ended_at_sequence":(?P<end>[0-9]+)'
    rb"|(?P<session>" + RECORDED.encode() + rb")"
    rb"|(?<![0-9a-f])(?P<time>1[0-9]{12})(?![0-9a-f])"
)

_RECORDS: Final = re.compile(rb'"journal_seq":([0-9]+)')


class CopyContext(msgspec.Struct):
    """What a copy of a message has of its own."""

    session: bytes
    shift_ms: int
    """From the recorded time to that of the copy."""
    unique: int
    """Different for each repetition of each session; below 2 to the 44th."""
    uuids: dict[bytes, bytes]
    """Ids of runs, inputs and calls, by the recorded ones."""
    fact_shifts: Mapping[bytes, int]
    """By family, how many facts of earlier repetitions precede."""
    record_shift: int
    last_turn_sequence: int = 0

    def uuid(self, recorded: bytes) -> bytes:
        """The id that replaces a recorded one."""
        made = self.uuids.get(recorded)
        if made is None:
            digits = recorded.decode()
            ms = int(digits[:8] + digits[9:13], 16) + self.shift_ms
            tail = int(digits[24:], 16) ^ (self.unique << 4)
            text = f"{ms:012x}"
            made = f"{text[:8]}-{text[8:]}{digits[13:24]}{tail:012x}".encode()
            self.uuids[recorded] = made
        return made


class MessageTemplate(NamedTuple):
    """A recorded message, cut where its copies differ."""

    family: str
    literals: tuple[bytes, ...]
    """One more than there are slots."""
    slots: tuple[tuple[str, bytes, int], ...]
    """Kind, text and number of what is between two literals."""
    kinds: str
    """The names of its facts, as they are in the header."""

    def copy(self, own: CopyContext) -> bytes:
        """The body of a copy."""
        parts = [self.literals[0]]
        for (kind, text, number), literal in zip(self.slots, self.literals[1:], strict=True):
            parts += (_fill(kind, text, number, own), literal)
        return b"".join(parts)


def _fill(kind: str, text: bytes, number: int, own: CopyContext) -> bytes:
    match kind:
        case "uuid":
            return own.uuid(text)
        case "fact":
            return b"%s.%s.%d" % (text, own.session, number + own.fact_shifts[text])
        case "time":
            return b"%d" % (number + own.shift_ms)
        case "session":
            return own.session
        case "record":
            return b'"journal_seq":%d' % (number + own.record_shift)
        case _:
            return b'"ended_at_sequence":%d' % own.last_turn_sequence


class RecordedSession(NamedTuple):
    """The messages of a session, in three parts."""

    opening: tuple[MessageTemplate, ...]
    """The session's begin and a first run."""
    cycle: tuple[MessageTemplate, ...]
    """``CYCLE_RUNS`` runs of every kind; the first message also commits the run before."""
    closing: tuple[MessageTemplate, ...]
    """The commit of the last run."""
    facts: Mapping[bytes, int]
    """By family, the facts of a cycle."""
    records: int
    """The approval records of a cycle."""
    renamed: Mapping[bytes, bytes]
    """Ids in a cycle that belong to the run before it, and those of its own last run."""
    begin_ms: int
    cycle_ms: int
    """How long a cycle took."""


async def record_session(client_url: str, node_url: str) -> RecordedSession:
    """Make the runs on the node there, and read their messages."""
    async with Client(client_url) as client:
        for code in (_PLAIN, *_CYCLE):
            await (_approved(client) if code == _ASKING else client.run(RECORDED, code))
    await asyncio.sleep(_QUIET_S)
    bus = JetStreamBus(node_url)
    await bus.start()
    try:
        pages = [page async for page in bus.journal.scan(Filter(key=RECORDED))]
    finally:
        await bus.stop()
    return _cut([stored for page in pages for stored in page])


async def _approved(client: Client) -> None:
    running = client.spawn(client.ask("run", RECORDED, {"code": _ASKING}))
    for _ in range(_POLLS_MAX):
        if waiting := await client.approvals(RECORDED):
            await client.decide(waiting[0], "approved", actor="bench")
            break
        await asyncio.sleep(_POLL_S)
    await running


def _cut(messages: Sequence[StoredMessage]) -> RecordedSession:
    if unknown := {one.entity.family for one in messages} - set(_FAMILIES):
        raise Failed("NODE_FAILED", f"the recorded session has messages of {sorted(unknown)}")
    ends = [at for at, one in enumerate(messages, 1) if b'"turn.' in one.body and _ends(one.body)]
    if len(ends) != 1 + CYCLE_RUNS:
        raise Failed("NODE_FAILED", f"{len(ends)} recorded runs ended, not {1 + CYCLE_RUNS}")
    opening, cycle = messages[: ends[0]], messages[ends[0] : ends[-1]]
    begin_ms = messages[0].stored_at_ms
    return RecordedSession(
        opening=tuple(map(_template, opening)),
        cycle=tuple(map(_template, cycle)),
        closing=tuple(map(_template, messages[ends[-1] :])),
        facts={
            name.encode(): sum(len(_heads(m.body)) for m in cycle if m.entity.family == name)
            for name in _FAMILIES
        },
        records=len({number for m in cycle for number in _RECORDS.findall(m.body)}),
        renamed=_renamed(opening, messages[ends[-2] : ends[-1]]),
        begin_ms=begin_ms,
        cycle_ms=cycle[-1].stored_at_ms - opening[-1].stored_at_ms,
    )


def _renamed(before: Iterable[StoredMessage], last: Iterable[StoredMessage]) -> dict[bytes, bytes]:
    """The run and the input of the opening, and those of the cycle's last run."""
    (accepted,) = (
        head for m in before for head in _heads(m.body) if head.input_id and head.request
    )
    *_, end = (head for m in last for head in _heads(m.body) if head.input_id and head.request)
    return {
        accepted.run.encode(): end.run.encode(),
        accepted.input_id.encode(): end.input_id.encode(),
    }


class _RecordedFact(msgspec.Struct):
    type: str
    run: str = ""
    input_id: str = ""
    request: msgspec.Raw = msgspec.Raw()


_heads = msgspec.json.Decoder(list[_RecordedFact]).decode
_ENDS: Final = (fact_tag(turn.Completed), fact_tag(turn.Failed))


def _ends(body: bytes) -> bool:
    return any(head.type in _ENDS for head in _heads(body))


def _template(stored: StoredMessage) -> MessageTemplate:
    literals, slots, at = [], [], 0
    for match, slot in _slots(stored):
        literals.append(stored.body[at : match.start()])
        slots.append(slot)
        at = match.end()
    names = dict.fromkeys(head.type.rpartition(".")[0] for head in _heads(stored.body))
    return MessageTemplate(
        stored.entity.family, (*literals, stored.body[at:]), tuple(slots), ",".join(names)
    )


def _slots(stored: StoredMessage) -> Iterator[tuple[re.Match[bytes], tuple[str, bytes, int]]]:
    for match in _PARTS.finditer(stored.body):
        kind = match.lastgroup or ""
        text = match[kind]
        if kind == "time" and abs(int(text) - stored.stored_at_ms) > 2 * _DAY_MS:
            continue
        if kind == "fact":
            yield match, (kind, match["family"], int(text))
        else:
            yield match, (kind, text, 0 if kind in ("uuid", "session") else int(text))


# --- journal loader -------------------------------------------------------------------------------

# The loader: it fills a journal with runs, as a node leaves them that has made them.
#
# Every message is a copy of a recorded one, and passes the journal's own appender with its
# expectation, its chain digest and its header. Sessions make their runs side by side, one message
# of each at a time. Afterwards the journal has the watermarks of a node that stopped with no work
# left.


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
