"""``RunReplies``: replies with the results of runs; performs admission's effects.

A result is stored in the turn's last fact and read from there, unless this node has just published
it. A result too large for a reply is replaced by its blob's digest, so that an executed run never
looks refused. A waiting client gets its reply right after the turn's end; all others after
session.run_committed, also after a crash.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET

from rookery.actors.admission.effects import AwaitResult, SendPastResult, SendReceipt
from rookery.actors.kernel import Effect, EffectHandler
from rookery.bus.ports import Blobs, Journal, ReplyMessage, RequestEndpoint
from rookery.schemas.codec import FactCodec, encode_json
from rookery.schemas.errors import Failed
from rookery.schemas.facts.turn import RUN_FACTS, Cancelled, Completed
from rookery.schemas.facts.turn import Failed as TurnFailed
from rookery.schemas.replies import RunAnswer
from rookery.schemas.run import RunResult

__all__ = ["RunReplies", "handlers"]

T = TypeVar("T")
RECENT_MAX = 256
AWAITED_MAX = 10_000
ENVELOPE_BYTES = 1 << 10
"""Room in a reply for the fields beside the result."""
CODEC: FactCodec[Any] = FactCodec(RUN_FACTS)


class RunReplies:
    """The recent results and the waiting clients. Lives on the bus's loop."""

    def __init__(self, journal: Journal, blobs: Blobs, request_endpoint: RequestEndpoint) -> None:
        self._journal, self._blobs, self._request_endpoint = journal, blobs, request_endpoint
        self._recent: OrderedDict[str, RunResult] = OrderedDict()
        self._waiting: OrderedDict[str, AwaitResult] = OrderedDict()
        """By run."""
        self._replied: OrderedDict[str, AwaitResult] = OrderedDict()
        """By reply subject."""

    def add_waiting(self, waiting: AwaitResult) -> None:
        """Register a waiting client."""
        _put_bounded(self._waiting, waiting.run_id, waiting, AWAITED_MAX)

    def publish(self, run_id: str, result: RunResult) -> None:
        """Send a run's result, which is committed, to its waiting client."""
        _put_bounded(self._recent, run_id, result, RECENT_MAX)
        waiting = self._waiting.pop(run_id, None)
        if waiting is not None:
            answer = RunAnswer.of(result, run_id, waiting.session)
            self._request_endpoint.reply([ReplyMessage(waiting.reply_to, encode_json(answer))])
            _put_bounded(self._replied, waiting.reply_to, waiting, AWAITED_MAX)

    def pop_replied(self, reply_to: str) -> bool:
        """Whether the client at ``reply_to`` got the result already; the entry is removed."""
        return self._replied.pop(reply_to, None) is not None

    async def result_of(self, session: str, run_id: str, at_sequence: int) -> RunAnswer:
        """The result from the fact at ``at_sequence``, as far as it fits into a reply."""
        if (recent := self._recent.get(run_id)) is not None:
            return RunAnswer.of(recent, run_id, session)
        stored = await self._journal.at(at_sequence)
        for fact in () if stored is None else CODEC.decode(stored.body):
            if isinstance(fact, Completed | TurnFailed | Cancelled) and fact.run == run_id:
                return await self._to_reply(fact, run_id, session)
        raise Failed("FACT_UNKNOWN", f"message {at_sequence} has no end of run {run_id}")

    async def _to_reply(
        self, fact: Completed | TurnFailed | Cancelled, run_id: str, session: str
    ) -> RunAnswer:
        result = RunResult() if fact.result is UNSET else fact.result
        if fact.result_blob is UNSET:
            return RunAnswer.of(result, run_id, session)
        whole = await self._blobs.get(fact.result_blob)
        if len(whole) + ENVELOPE_BYTES <= self._request_endpoint.reply_bytes_max:
            return RunAnswer.of(msgspec.json.decode(whole, type=RunResult), run_id, session)
        answer = RunAnswer.of(result, run_id, session)
        return msgspec.structs.replace(answer, result_blob=fact.result_blob)


def handlers(
    request_endpoint: RequestEndpoint, results: RunReplies | None
) -> Mapping[type[Effect], EffectHandler]:
    """The handlers of admission's effects. Without ``results`` this node executes no runs."""

    async def send_answer(effect: SendReceipt) -> None:
        receipt = effect.receipt
        _send(effect.reply_to, receipt if results is None else RunAnswer.of_unstarted(receipt))

    async def send_result(effect: SendPastResult) -> None:
        assert results is not None, "only an executed run has a result"
        if not results.pop_replied(effect.reply_to):
            answer = await results.result_of(effect.session, effect.run_id, effect.at_sequence)
            _send(effect.reply_to, answer)

    async def expect(effect: AwaitResult) -> None:
        if results is not None:
            results.add_waiting(effect)

    def _send(reply_to: str, answer: msgspec.Struct) -> None:
        request_endpoint.reply([ReplyMessage(reply_to, encode_json(answer))])

    return {AwaitResult: expect, SendReceipt: send_answer, SendPastResult: send_result}


def _put_bounded(entries: OrderedDict[str, T], key: str, value: T, count_max: int) -> None:
    """Add an entry and drop the oldest beyond the limit: its client gets the reply a little
    later."""
    entries[key] = value
    if len(entries) > count_max:
        entries.popitem(last=False)
