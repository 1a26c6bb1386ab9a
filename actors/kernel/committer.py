"""``Committer``: appends the commits of a node's actors in groups, and routes their facts."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

from rookery.actors.histories import KeyHistories
from rookery.actors.kernel.decider import Decider
from rookery.actors.kernel.effect_runner import EffectRunner, Watermark
from rookery.actors.kernel.entities.mailbox import FactsCommitted, Mailbox
from rookery.actors.kernel.entities.unit_of_work import Commit, CommitResults, Completions
from rookery.actors.kernel.executors.failpoints import Failpoints
from rookery.actors.keys.checkpoints import CheckpointWriter
from rookery.actors.metrics import KernelMetrics
from rookery.bus.ports import Appended, AppendOutcome, Journal, StoredMessage, Superseded
from rookery.schemas.codec import FactCodec
from rookery.schemas.envelope import EntityId, Fact
from rookery.schemas.ids import parse_fact_id

__all__ = [
    "Committer",
    "FactRouter",
]

# --- fact router ----------------------------------------------------------------------------------

# ``FactRouter``: passes committed facts to the families that react to them or observe them.
#
# The facts arrive in journal order, and before the deciding actor learns of its ack: so a reacting
# family knows them before it decides a client's next command.


class FactRouter:
    """One per node; called on the loop."""

    def __init__(
        self, deciders: Sequence[Decider], mailboxes: Mapping[str, Mailbox], watermark: Watermark
    ) -> None:
        self._watermark = watermark
        self._subscribers: dict[str, list[tuple[Mailbox, Decider]]] = {}
        for decider in deciders:
            for family in decider.reacts_to | decider.observes:
                subscriber = mailboxes[decider.family], decider
                self._subscribers.setdefault(family, []).append(subscriber)

    def publish(self, source: EntityId, sequence: int, facts: Sequence[Fact]) -> None:
        """Post the facts of one message to all reacting families. An observing family gets them
        only if its entity is in memory; otherwise it reads them from the journal later. An actor is
        not woken for facts that its decider passes over."""
        for mailbox, decider in self._subscribers.get(source.family, ()):
            is_held = source.key in mailbox.entities
            if source.family not in decider.reacts_to and not is_held:
                continue
            message = self.to_message(decider, source, sequence, facts)
            if message.numbered:
                mailbox.post(message)
            elif is_held:
                mailbox.post_quietly(message)

    def to_message(
        self,
        decider: Decider,
        source: EntityId,
        sequence: int,
        facts: Sequence[Fact],
        after: int = 0,
    ) -> FactsCommitted:
        """A message with the facts numbered above ``after`` that matter to the decider, each with a
        watermark hold."""
        first = parse_fact_id(facts[0].id)[2]
        kinds = _kinds_that_matter(decider, source.family)
        due = [
            (number, fact, self._watermark.hold(sequence))
            for number, fact in enumerate(facts, first)
            if number > after and (not kinds or type(fact) in kinds)
        ]
        return FactsCommitted(source, sequence, due, first, first + len(facts) - 1)

    def read_message(
        self, decider: Decider, stored: StoredMessage, codec: FactCodec[Any], after: int
    ) -> FactsCommitted | None:
        """``to_message`` of a stored message; ``None`` if it has no facts. Facts of which none
        matters are not decoded."""
        if (passed := _passed_over(decider, stored, codec, after)) is not None:
            return passed
        facts = codec.decode(stored.body)
        if not facts:
            return None
        return self.to_message(decider, stored.entity, stored.sequence, facts, after)


def _passed_over(
    decider: Decider, stored: StoredMessage, codec: FactCodec[Any], after: int
) -> FactsCommitted | None:
    """The message if none of its facts matters, by their classes and ids alone."""
    family, key = stored.entity
    heads, prefix = codec.skim(stored.body), f"{family}.{key}."
    number = heads[0][0].removeprefix(prefix) if heads else ""
    if not number.isdecimal() or not heads[0][0].startswith(prefix):
        return None
    first = int(number)
    last = first + len(heads) - 1
    kinds = _kinds_that_matter(decider, family)
    if last > after and (not kinds or any(kind is None or kind in kinds for _, kind in heads)):
        return None
    return FactsCommitted(stored.entity, stored.sequence, [], first, last)


def _kinds_that_matter(decider: Decider, family: str) -> frozenset[type[Fact]]:
    """The facts of a family that the decider reacts to; empty if all of them matter."""
    return frozenset() if family in decider.observes else decider.reaction_types


# --- committer ------------------------------------------------------------------------------------

# ``Committer``: appends the commits of a node's actors to the journal in groups, and publishes the
# results.
#
# At most two groups are in flight; commits that arrive meanwhile form the next group, so groups
# grow under load and an idle node adds no delay. Lives on the bus's loop. The journal decides how a
# message is stored; the entity's actor decides what follows from a conflict.


GROUPS_MAX = 2
GROUP_MESSAGES_MAX = 1_000
GROUP_BYTES_MAX = 8 << 20


class Committer:
    """One per node; all methods are called on the loop."""

    def __init__(
        self,
        journal: Journal,
        reactions: FactRouter,
        effects: EffectRunner,
        watermark: Watermark,
        histories: KeyHistories,
        *,
        complete: Callable[[Completions], None],
        metrics: KernelMetrics,
        on_committed: Callable[[Sequence[Fact]], None] | None,
        failpoints: Failpoints,
        acts_for: Callable[[str], bool],
        on_newer_term: Callable[[], None],
        checkpoints: CheckpointWriter,
    ) -> None:
        """``acts_for``: whether this node owns a key now. ``on_newer_term``: called when another
        node has begun a term in a partition that this node appends to."""
        self._journal, self._fact_router, self._effect_runner = journal, reactions, effects
        self._watermark, self._complete, self._acts_for = watermark, complete, acts_for
        self._histories, self._checkpoints = histories, checkpoints
        self._on_newer_term = on_newer_term
        self._metrics, self._failpoints = metrics, failpoints
        self._on_committed = on_committed
        self._queue: deque[Commit] = deque()
        self._groups = 0
        self._settling: set[asyncio.Future[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    async def wait_idle(self) -> None:
        """Wait until the result of every submitted commit is known."""
        await self._idle.wait()

    async def wait_settled(self) -> None:
        """Wait until the appends that are in flight now have their outcome."""
        if self._settling:
            await asyncio.wait(set(self._settling))

    def submit(self, commits: Sequence[Commit], completions: Completions) -> None:
        """Accept the output of one wake of an actor: commits, and completions that need no
        commit."""
        self._queue.extend(commits)
        self._start_groups()
        self._complete(completions)

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
        hold = self._watermark.hold_next()
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._settling.add(settled)

        def settle(outcomes: list[AppendOutcome]) -> None:
            nonlocal left
            left -= len(outcomes)
            self._on_results(outcomes)
            if not left:
                hold.release()
                self._settling.remove(settled)
                settled.set_result(None)
                self._groups -= 1
                self._start_groups()

        self._journal.append(group, settle)
        self._failpoints.hit("append_sent")

    def _on_results(self, outcomes: list[AppendOutcome]) -> None:
        """Publish the facts to reacting families first, then the results to the actors, then the
        replies: a client's next request then sees the new state."""
        self._failpoints.hit("appended")
        results: dict[Mailbox, CommitResults] = {}
        completions = Completions()
        appended: list[tuple[Commit, int]] = []
        for outcome in outcomes:
            commit = outcome.append
            assert isinstance(commit, Commit)
            results.setdefault(commit.mailbox, CommitResults()).append(outcome)
            if isinstance(outcome, Appended):
                appended.append((commit, outcome.sequence))
                self._checkpoints.add(commit, outcome.sequence, commit.facts)
                self._histories.add(commit, outcome.sequence, commit.facts[-1].at_ms)
                completions.merge(commit.completions)
                self._record_metrics(commit)
            elif isinstance(outcome, Superseded):
                self._checkpoints.add_uncertain(commit)
        if any(isinstance(outcome, Superseded) for outcome in outcomes):
            self._on_newer_term()
        for commit, sequence in appended:
            if self._acts_for(commit.entity.key):
                self._fact_router.publish(commit.entity, sequence, commit.facts)
        for mailbox, batch in results.items():
            mailbox.post(batch)
        self._failpoints.hit("acked")
        self._complete(completions)
        self._failpoints.hit("replied")
        for commit, sequence in appended:
            if commit.effects:
                self._effect_runner.start(commit.entity.key, sequence, commit.effects)
            self._watermark.advance(sequence)

    def _record_metrics(self, commit: Commit) -> None:
        now_s, metrics = perf_counter(), self._metrics
        metrics.committed(commit.entity.family, 1, len(commit.facts), now_s - commit.decided_s)
        metrics.facts_committed(commit.facts)
        if self._on_committed is not None:
            self._on_committed(commit.facts)
        for pending in commit.commands:
            metrics.command(pending.command.verb, pending.outcome, now_s - pending.received_s)
