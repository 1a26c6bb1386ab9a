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

from rookery.actors.kernel.completions import Completions
from rookery.actors.kernel.decider import Effect
from rookery.actors.kernel.effect_runner import EffectRunner
from rookery.actors.kernel.entity import Entity, PendingCommand
from rookery.actors.kernel.fact_router import FactRouter
from rookery.actors.kernel.failpoints import Failpoints
from rookery.actors.kernel.mailbox import Mailbox
from rookery.actors.kernel.metrics import KernelMetrics
from rookery.actors.kernel.watermark import Watermark
from rookery.bus.ports import Appended, AppendOutcome, AppendRequest, Journal, Superseded
from rookery.schemas.envelope import Fact

__all__ = ["Commit", "CommitResults", "Committer"]

GROUPS_MAX = 2
GROUP_MESSAGES_MAX = 1_000
GROUP_BYTES_MAX = 8 << 20


class Commit(AppendRequest, eq=False, kw_only=True):
    """An append with what becomes true once it is durable."""

    mailbox: Mailbox
    entity_record: Entity
    facts: list[Fact]
    commands: list[PendingCommand]
    state: Any
    """What the facts make of the entity."""
    effects: list[Effect]
    completions: Completions
    decided_s: float


class CommitResults(list[AppendOutcome]):
    """What became of an actor's commits; posted to its mailbox."""


class Committer:
    """One a node. Every method is called on the loop."""

    def __init__(
        self,
        journal: Journal,
        reactions: FactRouter,
        effects: EffectRunner,
        horizon: Watermark,
        *,
        tell: Callable[[Completions], None],
        observer: KernelMetrics,
        failpoints: Failpoints,
        acts_for: Callable[[str], bool],
        on_displaced: Callable[[], None],
    ) -> None:
        """``acts_for``: whether this node sees to what follows for a key. ``on_displaced``: called
        when another node's turn has begun in a partition that this one appends to."""
        self._journal, self._fact_router, self._effect_runner = journal, reactions, effects
        self._watermark, self._complete, self._acts_for = horizon, tell, acts_for
        self._on_displaced = on_displaced
        self._metrics, self._failpoints = observer, failpoints
        self._queue: deque[Commit] = deque()
        self._groups = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def wait_idle(self) -> None:
        """Wait until of everything accepted it is known what became of it."""
        await self._idle.wait()

    def submit(self, commits: Sequence[Commit], closing: Completions) -> None:
        """Take what one wake of an actor produced: commits, and ends that need no commit."""
        self._queue.extend(commits)
        self._start_groups()
        self._complete(closing)

    def _start_groups(self) -> None:
        while self._queue and self._groups < GROUPS_MAX:
            group = self._next_group()
            self._groups += 1
            self._idle.clear()
            self._append(group)
        if not self._groups:
            self._idle.set()

    def _next_group(self) -> list[Commit]:
        group: list[Commit] = []
        size = 0
        while self._queue and len(group) < GROUP_MESSAGES_MAX and size < GROUP_BYTES_MAX:
            group.append(self._queue.popleft())
            size += len(group[-1].body)
        return group

    def _append(self, group: list[Commit]) -> None:
        left = len(group)
        ticket = self._watermark.hold_next()

        def settle(outcomes: list[AppendOutcome]) -> None:
            nonlocal left
            left -= len(outcomes)
            self._on_results(outcomes)
            if not left:
                ticket.release()
                self._groups -= 1
                self._start_groups()

        self._journal.append(group, settle)
        self._failpoints.hit("append_sent")

    def _on_results(self, outcomes: list[AppendOutcome]) -> None:
        """First those who react, then the actors that decided, then whoever asked: a question that
        follows sees the new state."""
        self._failpoints.hit("appended")
        homes: dict[Mailbox, CommitResults] = {}
        closing = Completions()
        settled: list[tuple[Commit, int]] = []
        for outcome in outcomes:
            commit = outcome.append
            assert isinstance(commit, Commit)
            homes.setdefault(commit.mailbox, CommitResults()).append(outcome)
            if isinstance(outcome, Appended):
                settled.append((commit, outcome.sequence))
                closing.merge(commit.completions)
                self._record_metrics(commit)
        if any(isinstance(outcome, Superseded) for outcome in outcomes):
            self._on_displaced()
        for commit, sequence in settled:
            if self._acts_for(commit.entity.key):
                self._fact_router.publish(commit.entity, sequence, commit.facts)
        for mailbox, batch in homes.items():
            mailbox.post(batch)
        self._failpoints.hit("acked")
        self._complete(closing)
        self._failpoints.hit("replied")
        for commit, sequence in settled:
            if commit.effects:
                self._effect_runner.start(commit.entity.key, sequence, commit.effects)
            self._watermark.advance(sequence)

    def _record_metrics(self, commit: Commit) -> None:
        now_s, observer = perf_counter(), self._metrics
        observer.committed(commit.entity.family, 1, len(commit.facts), now_s - commit.decided_s)
        observer.facts_committed(commit.facts)
        for work in commit.commands:
            observer.command(work.command.verb, work.outcome, now_s - work.received_s)
