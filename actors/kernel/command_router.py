"""From doors to mailboxes, and from ends of commands back to doors. Lives on the bus's loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import perf_counter

import msgspec

from rookery.actors.kernel.completions import Completions
from rookery.actors.kernel.decider import Decider
from rookery.actors.kernel.delivery_decoder import error_reply
from rookery.actors.kernel.entity import PendingCommand
from rookery.actors.kernel.local_ask import LocalAsk, is_local
from rookery.actors.kernel.mailbox import REQUESTS_BYTES_MAX, REQUESTS_MAX, Mailbox
from rookery.actors.kernel.messages import CommandsArrived
from rookery.actors.kernel.metrics import KernelMetrics
from rookery.bus.ports import Bus, Delivery, ReplyMessage, TaskSet
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import CodedError, Failed, Refused

__all__ = ["CommandRouter", "QueryHandler"]

log = logging.getLogger(__name__)

QueryHandler = Callable[[Delivery], Awaitable[msgspec.Struct]]
"""Answers a question about many entities; leaves no fact."""


class CommandRouter:
    """One a node."""

    def __init__(
        self,
        bus: Bus,
        concerns: Sequence[Decider],
        mailboxes: Mapping[str, Mailbox],
        queries: Mapping[str, QueryHandler],
        observer: KernelMetrics,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        self._bus, self._queries, self._metrics = bus, queries, observer
        self._now_ms = now_ms
        self._mailboxes = {verb: mailboxes[c.family] for c in concerns for verb in c.verbs}
        self.local_ask = LocalAsk(mailboxes)
        self.tasks = TaskSet()
        """Queries and burials."""

    @property
    def verbs(self) -> frozenset[str]:
        """What may be asked here."""
        return frozenset((*self._mailboxes, *self._queries))

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Hand a batch to the actors concerned, keeping its order for each of them. What nobody
        has stamped arrives now."""
        batches: dict[Mailbox, CommandsArrived] = {}
        now_ms = self._now_ms()
        for delivery in deliveries:
            delivery.arrived_ms = delivery.arrived_ms or now_ms
            home = self._mailboxes.get(delivery.verb)
            if home is not None:
                if delivery.position is None and not home.in_flight_limit.try_enter(
                    len(delivery.body)
                ):
                    self._reject_overloaded(delivery)
                    continue
                batches.setdefault(home, CommandsArrived(home.in_flight_limit)).append(delivery)
            elif delivery.verb in self._queries:
                self.run_query(delivery, delivery.verb)
            else:
                self._refuse_verb(delivery)
        for home, batch in batches.items():
            home.post(batch)

    def run_query(self, delivery: Delivery, verb: str) -> None:
        """Have the query ``verb`` answer."""
        self.tasks.start(self._run_query(delivery, verb))

    def complete(self, closing: Completions) -> None:
        """Tell whoever asked, free the inbox, bury what nobody waits for.

        No answer costs more than itself: whatever becomes of it, this does not raise, what is
        worked off is freed, and commits beside and after it go their way.
        """
        try:
            if answers := self.local_ask.resolve_replies(closing.replies):
                self._bus.request_endpoint.reply(answers)
        except Exception:  # Of a door that breaks its word. Whoever was not told asks again.
            log.exception("%d answers were not given", len(closing.replies))
        if closing.positions:
            self._bus.inbox.done(closing.positions)
        for delivery, error in closing.dead_letters:
            self.tasks.start(self._dead_letter_and_ack(delivery, error))

    def quarantine(
        self,
        work: PendingCommand,
        error: CodedError,
        record: Callable[[PendingCommand, CodedError, int | None], None],
    ) -> None:
        """Set a command aside: a dead letter, an answer, a fact."""
        self.tasks.start(self._quarantine(work, error, record))

    def _refuse_verb(self, delivery: Delivery) -> None:
        known = ", ".join(sorted(self.verbs))
        verb = delivery.verb[:80]
        closing = Completions()
        closing.refuse(
            delivery, Refused("UNKNOWN_VERB", f"no verb {verb!r}", hint=f"known: {known}")
        )
        self.complete(closing)

    def _reject_overloaded(self, delivery: Delivery) -> None:
        """At once, with nothing decoded: the asker keeps its request and comes again."""
        self._metrics.command(delivery.verb, "overloaded", 0.0)
        closing = Completions()
        closing.refuse(
            delivery,
            Failed(
                "NODE_OVERLOADED",
                f"{REQUESTS_MAX} requests, or {REQUESTS_BYTES_MAX} bytes of them, wait already",
                hint="send it again later under its id, or leave it in the inbox",
            ),
        )
        self.complete(closing)

    async def _run_query(self, delivery: Delivery, verb: str) -> None:
        closing, outcome, begun_s = Completions(), "refused", perf_counter()
        try:
            shown = encode_json(await self._queries[verb](delivery))
        except CodedError as error:
            closing.refuse(delivery, error)
        except Exception as error:
            log.exception("a query failed", extra={"verb": delivery.verb})
            closing.refuse(delivery, Failed("NODE_FAILED", f"{delivery.verb}: {error!r}"))
        else:
            if delivery.reply_to:
                closing.replies.append(ReplyMessage(delivery.reply_to, shown))
            closing.ack(delivery)
            outcome = "unchanged"
        self._metrics.command(verb, outcome, perf_counter() - begun_s)
        self.complete(closing)

    async def _dead_letter_and_ack(self, delivery: Delivery, error: CodedError) -> None:
        await self._dead_letter(delivery, error)
        if delivery.position is not None:
            self._bus.inbox.done([delivery.position])

    async def _quarantine(
        self,
        work: PendingCommand,
        error: CodedError,
        record: Callable[[PendingCommand, CodedError, int | None], None],
    ) -> None:
        number = None
        if work.delivery is not None:
            if not is_local(work.delivery):
                number = await self._dead_letter(work.delivery, error)
            if work.delivery.reply_to:
                self.complete(Completions([error_reply(work.delivery.reply_to, error)]))
            if work.delivery.position is not None:
                self._bus.inbox.done([work.delivery.position])
        record(work, error, number)

    async def _dead_letter(self, delivery: Delivery, error: CodedError) -> int | None:
        """The dead letter's number; ``None`` if not even that can be kept."""
        while True:
            try:
                return await self._bus.inbox.dead_letter(delivery, error.code, error.message)
            except Failed as failure:
                log.warning("a dead letter waits for the server", extra={"code": failure.code})
                await asyncio.sleep(0.5)
            except Refused as refusal:
                log.error("a command is lost", extra={"id": delivery.id, "code": refusal.code})
                return None
