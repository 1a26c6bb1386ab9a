"""Joins what the actors of a node decided, appends it to the journal in groups, and sees to what
follows from the acks.

At most two groups are under way; what is decided meanwhile joins the next one, so groups grow by
themselves under load and nothing waits at rest. Lives on the bus's loop. It refuses to own how a
message is stored (the journal's) and what a conflict means (the entity's actor's).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from rookery.actors.kernel.completions import Closing
from rookery.actors.kernel.decider import Effect
from rookery.actors.kernel.effect_runner import Effects
from rookery.actors.kernel.entity import Entity, Work
from rookery.actors.kernel.fact_router import Reactions
from rookery.actors.kernel.failpoints import Failpoints
from rookery.actors.kernel.mailbox import Mailbox
from rookery.actors.kernel.metrics import Observer
from rookery.actors.kernel.watermark import Horizon
from rookery.bus.ports import Append, Displaced, Journal, Outcome, Settled
from rookery.schemas.envelope import Fact

__all__ = ["Commit", "Committer", "Outcomes"]

GROUPS_MAX = 2
GROUP_MESSAGES_MAX = 1_000
GROUP_BYTES_MAX = 8 << 20


class Commit(Append, eq=False, kw_only=True):
    """An append with what becomes true once it is durable."""

    mailbox: Mailbox
    home: Entity
    facts: list[Fact]
    works: list[Work]
    state: Any
    """What the facts make of the entity."""
    effects: list[Effect]
    closing: Closing
    decided_s: float


class Outcomes(list[Outcome]):
    """What became of an actor's commits; posted to its mailbox."""


class Committer:
    """One a node. Every method is called on the loop."""

    def __init__(
        self,
        journal: Journal,
        reactions: Reactions,
        effects: Effects,
        horizon: Horizon,
        *,
        tell: Callable[[Closing], None],
        observer: Observer,
        failpoints: Failpoints,
        acts_for: Callable[[str], bool],
        on_displaced: Callable[[], None],
    ) -> None:
        """``acts_for``: whether this node sees to what follows for a key. ``on_displaced``: called
        when another node's turn has begun in a partition that this one appends to."""
        self._journal, self._reactions, self._effects = journal, reactions, effects
        self._horizon, self._tell, self._acts_for = horizon, tell, acts_for
        self._on_displaced = on_displaced
        self._observer, self._failpoints = observer, failpoints
        self._queue: deque[Commit] = deque()
        self._groups = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def settled(self) -> None:
        """Wait until of everything accepted it is known what became of it."""
        await self._idle.wait()

    def accept(self, commits: Sequence[Commit], closing: Closing) -> None:
        """Take what one wake of an actor produced: commits, and ends that need no commit."""
        self._queue.extend(commits)
        self._pump()
        self._tell(closing)

    def _pump(self) -> None:
        while self._queue and self._groups < GROUPS_MAX:
            group = self._take()
            self._groups += 1
            self._idle.clear()
            self._send(group)
        if not self._groups:
            self._idle.set()

    def _take(self) -> list[Commit]:
        group: list[Commit] = []
        size = 0
        while self._queue and len(group) < GROUP_MESSAGES_MAX and size < GROUP_BYTES_MAX:
            group.append(self._queue.popleft())
            size += len(group[-1].body)
        return group

    def _send(self, group: list[Commit]) -> None:
        left = len(group)
        ticket = self._horizon.open_next()

        def settle(outcomes: list[Outcome]) -> None:
            nonlocal left
            left -= len(outcomes)
            self._conclude(outcomes)
            if not left:
                ticket.close()
                self._groups -= 1
                self._pump()

        self._journal.append(group, settle)
        self._failpoints.hit("append_sent")

    def _conclude(self, outcomes: list[Outcome]) -> None:
        """First those who react, then the actors that decided, then whoever asked: a question that
        follows sees the new state."""
        self._failpoints.hit("appended")
        homes: dict[Mailbox, Outcomes] = {}
        closing = Closing()
        settled: list[tuple[Commit, int]] = []
        for outcome in outcomes:
            commit = outcome.append
            assert isinstance(commit, Commit)
            homes.setdefault(commit.mailbox, Outcomes()).append(outcome)
            if isinstance(outcome, Settled):
                settled.append((commit, outcome.sequence))
                closing.join(commit.closing)
                self._observe(commit)
        if any(isinstance(outcome, Displaced) for outcome in outcomes):
            self._on_displaced()
        for commit, sequence in settled:
            if self._acts_for(commit.entity.key):
                self._reactions.hand_over(commit.entity, sequence, commit.facts)
        for mailbox, batch in homes.items():
            mailbox.post(batch)
        self._failpoints.hit("acked")
        self._tell(closing)
        self._failpoints.hit("replied")
        for commit, sequence in settled:
            if commit.effects:
                self._effects.start(commit.entity.key, sequence, commit.effects)
            self._horizon.passed(sequence)

    def _observe(self, commit: Commit) -> None:
        now_s, observer = perf_counter(), self._observer
        observer.committed(commit.entity.family, 1, len(commit.facts), now_s - commit.decided_s)
        for work in commit.works:
            observer.command(work.command.verb, work.outcome, now_s - work.received_s)
