"""``CommandRouter``: decodes deliveries, passes them to mailboxes, and completions to the bus."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha3_256
from time import perf_counter

import msgspec

from rookery.actors.kernel.decider import Decider, RecordsMalformed
from rookery.actors.kernel.entities.entity import PendingCommand
from rookery.actors.kernel.entities.mailbox import CommandsArrived, Mailbox
from rookery.actors.kernel.entities.unit_of_work import Completions
from rookery.actors.kernel.executors.asks import LocalAsk, QueryHandler, error_reply, is_local
from rookery.actors.metrics import KernelMetrics
from rookery.bus.ports import Bus, Delivery, ReplyMessage, TaskSet
from rookery.schemas.codec import decode_command, encode_json
from rookery.schemas.commands import INTERNAL_VERBS, SIGNED_VERBS
from rookery.schemas.envelope import Command, InputSource, Mode
from rookery.schemas.errors import CodedError, Failed, Refused
from rookery.schemas.ids import check_command_id

__all__ = [
    "CommandRouter",
    "decode_delivery",
    "wrap_undecoded",
]

# --- command router -------------------------------------------------------------------------------

# ``CommandRouter``: passes deliveries to mailboxes and completions to the bus. Lives on the bus's
# loop.


log = logging.getLogger(__name__)


class CommandRouter:
    """One per node."""

    def __init__(
        self,
        bus: Bus,
        deciders: Sequence[Decider],
        mailboxes: Mapping[str, Mailbox],
        queries: Mapping[str, QueryHandler],
        observer: KernelMetrics,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        self._bus, self._queries, self._metrics = bus, queries, observer
        self._now_ms = now_ms
        self._mailboxes = {verb: mailboxes[c.family] for c in deciders for verb in c.verbs}
        self.local_ask = LocalAsk(mailboxes)
        self.tasks = TaskSet()
        """Running queries and dead letters being stored."""

    @property
    def verbs(self) -> frozenset[str]:
        """The verbs of commands and queries that this node answers to clients."""
        return frozenset((*self._mailboxes, *self._queries)) - INTERNAL_VERBS - SIGNED_VERBS

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Pass each command of a batch to its actor's mailbox, in order per actor. A delivery
        without a server timestamp gets the current time."""
        batches: dict[Mailbox, CommandsArrived] = {}
        now_ms = self._now_ms()
        for delivery in deliveries:
            delivery.arrived_ms = delivery.arrived_ms or now_ms
            mailbox = self._mailbox_of(delivery)
            if mailbox is not None:
                limit = mailbox.in_flight_limit
                if delivery.position is None and not limit.try_enter(
                    delivery.by, len(delivery.body)
                ):
                    self._reject_overloaded(delivery, limit.refusal(delivery.by))
                    continue
                batches.setdefault(mailbox, CommandsArrived(limit)).append(delivery)
            elif delivery.verb in self._queries:
                self.run_query(delivery, delivery.verb)
            else:
                self._refuse_verb(delivery)
        for mailbox, commands in batches.items():
            mailbox.post(commands)

    def _mailbox_of(self, delivery: Delivery) -> Mailbox | None:
        """``None`` for a verb without an actor, for an internal one that no timer sent, and for a
        request with a verb that only the inbox has."""
        if delivery.verb in INTERNAL_VERBS and not delivery.is_from_timer:
            return None
        if delivery.verb in SIGNED_VERBS and delivery.position is None:
            return None
        return self._mailboxes.get(delivery.verb)

    def run_query(self, delivery: Delivery, verb: str) -> None:
        """Start the query ``verb`` and send its reply."""
        self.tasks.start(self._run_query(delivery, verb))

    def complete(self, completions: Completions) -> None:
        """Send replies, acknowledge inbox commands and store dead letters.

        One failing reply stops nothing else: this method does not raise, and all finished commands
        are acknowledged.
        """
        try:
            if answers := self.local_ask.resolve_replies(completions.replies):
                self._bus.request_endpoint.reply(answers)
        except Exception:  # The endpoint raised, which its contract forbids. The client retries.
            log.exception("%d replies not sent", len(completions.replies))
        if completions.positions:
            self._bus.inbox.done(completions.positions)
        for delivery, error in completions.dead_letters:
            self.tasks.start(self._dead_letter_and_ack(delivery, error))

    def quarantine(
        self,
        pending: PendingCommand,
        error: CodedError,
        record: Callable[[PendingCommand, CodedError, int | None], None],
    ) -> None:
        """Set a command aside: a dead letter, an error reply, a fact."""
        self.tasks.start(self._quarantine(pending, error, record))

    def _refuse_verb(self, delivery: Delivery) -> None:
        known = ", ".join(sorted(self.verbs))
        verb = delivery.verb[:80]
        completions = Completions()
        completions.refuse(
            delivery, Refused("UNKNOWN_VERB", f"no verb {verb!r}", hint=f"known: {known}")
        )
        self.complete(completions)

    def _reject_overloaded(self, delivery: Delivery, reason: str) -> None:
        """Reject a request at once, undecoded; the client keeps it and retries."""
        self._metrics.command(delivery.verb, "overloaded", 0.0)
        completions = Completions()
        completions.refuse(
            delivery,
            Failed(
                "NODE_OVERLOADED",
                reason,
                hint="send it again later under the same id, or send it through the inbox",
            ),
        )
        self.complete(completions)

    async def _run_query(self, delivery: Delivery, verb: str) -> None:
        completions, outcome, begun_s = Completions(), "refused", perf_counter()
        try:
            shown = encode_json(await self._queries[verb](delivery))
        except CodedError as error:
            completions.refuse(delivery, error)
        except Exception as error:
            log.exception("query failed", extra={"verb": delivery.verb})
            completions.refuse(delivery, Failed("NODE_FAILED", f"{delivery.verb}: {error!r}"))
        else:
            if delivery.reply_to:
                completions.replies.append(ReplyMessage(delivery.reply_to, shown))
            completions.ack(delivery)
            outcome = "unchanged"
        self._metrics.command(verb, outcome, perf_counter() - begun_s)
        self.complete(completions)

    async def _dead_letter_and_ack(self, delivery: Delivery, error: CodedError) -> None:
        await self._dead_letter(delivery, error)
        if delivery.position is not None:
            self._bus.inbox.done([delivery.position])

    async def _quarantine(
        self,
        pending: PendingCommand,
        error: CodedError,
        record: Callable[[PendingCommand, CodedError, int | None], None],
    ) -> None:
        number = None
        if pending.delivery is not None:
            if not is_local(pending.delivery.reply_to):
                number = await self._dead_letter(pending.delivery, error)
            if pending.delivery.reply_to:
                self.complete(Completions([error_reply(pending.delivery.reply_to, error)]))
            if pending.delivery.position is not None:
                self._bus.inbox.done([pending.delivery.position])
        record(pending, error, number)

    async def _dead_letter(self, delivery: Delivery, error: CodedError) -> int | None:
        """Store a dead letter; its number, or ``None`` if the store failed."""
        while True:
            try:
                return await self._bus.inbox.dead_letter(delivery, error.code, error.message)
            except Failed as failure:
                log.warning("dead letter not stored, retrying", extra={"code": failure.code})
                await asyncio.sleep(0.5)
            except Refused as refusal:
                log.error("command lost", extra={"id": delivery.id, "code": refusal.code})
                return None


# --- delivery decoder -----------------------------------------------------------------------------

# Decodes and checks a delivery from the bus.
#
# A body without the verb's form is refused with a code, unless the decider records malformed
# commands.


_MODES = {mode.value: mode for mode in Mode} | {"": Mode.QUEUE}
_INPUT_SOURCES = {source.value: source for source in InputSource}


def decode_delivery(
    delivery: Delivery, decider: Decider, received_s: float, bytes_max: int
) -> PendingCommand:
    """The pending command of a delivery; ``CodedError`` if it is invalid."""
    if delivery.verb not in decider.verbs:
        known = ", ".join(sorted(decider.verbs))
        raise Refused("UNKNOWN_VERB", f"no verb {delivery.verb[:80]!r}", hint=f"known: {known}")
    is_signed = delivery.verb in decider.signed_verbs
    if is_signed:
        delivery.reply_to = ""  # Its sender is not verified yet.
    decider.check_key(delivery.key)
    mode = _MODES.get(delivery.mode)
    if mode is None:
        raise Refused(
            "INVALID_ARGUMENT",
            f"mode {delivery.mode[:80]!r} is not known",
            hint="one of queue, passive, steer, interrupt",
        )
    if "/" in check_command_id(delivery.id) and not delivery.is_from_timer:
        raise Refused("INVALID_ARGUMENT", "a message id cannot contain '/'", hint="use a UUID")
    if is_signed:
        command_id, body = decider.decode_signed(delivery)
    else:
        command_id, body = delivery.id, _decode_body(delivery, decider, bytes_max)
    command = Command(
        verb=delivery.verb,
        key=delivery.key,
        id=command_id,
        body=body,
        mode=mode,
        input_source=_input_source(delivery),
        reply_to=delivery.reply_to,
        caller_waits=delivery.position is None and bool(delivery.reply_to),
        traceparent=delivery.traceparent,
        by=delivery.by,
        arrived_ms=delivery.arrived_ms,
    )
    digest = sha3_256(delivery.body).hexdigest()[:16]
    return PendingCommand(command, digest, received_s, delivery)


def _input_source(delivery: Delivery) -> InputSource:
    """The source that the client names, or that of the delivery."""
    if not delivery.input_source:
        is_stored = delivery.position is not None and not delivery.is_from_timer
        return InputSource.TCP if is_stored else InputSource.RPC
    source = _INPUT_SOURCES.get(delivery.input_source)
    if source is None:
        text = f"input source {delivery.input_source[:80]!r} is not known"
        raise Refused("INVALID_ARGUMENT", text, hint=f"one of {', '.join(_INPUT_SOURCES)}")
    return source


def _decode_body(delivery: Delivery, decider: Decider, bytes_max: int) -> msgspec.Struct:
    """The decoded body, or the command its decider records in place of a malformed one."""
    verb, body = delivery.verb, delivery.body
    content_type, kind = delivery.content_type, decider.verbs[verb]
    try:
        return decode_command(body, kind, content_type=content_type, bytes_max=bytes_max)
    except CodedError as error:
        malformed = (
            decider.on_malformed(verb, body, error)
            if isinstance(decider, RecordsMalformed)
            else None
        )
        if malformed is None:
            raise
        return malformed


def wrap_undecoded(delivery: Delivery, received_s: float) -> PendingCommand:
    """A pending command for a delivery that made the decoding rules fail, to be set aside."""
    command = Command(verb=delivery.verb, key=delivery.key, id=delivery.id, body=None)
    return PendingCommand(command, "", received_s, delivery)
