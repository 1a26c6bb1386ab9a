"""``RunReplies``: sends results of runs and receipts to clients; performs admission's effects.

The result of a run is in the turn's last fact. A result too large for a reply is replaced by its
blob's digest, so that an executed run never looks refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from rookery.actors.admission.effects import SendPastResult, SendReceipt
from rookery.actors.kernel import Effect
from rookery.actors.kernel.executors import EffectHandler
from rookery.bus.ports import Blobs, Journal, ReplyMessage, RequestEndpoint
from rookery.schemas.codec import FactCodec, encode_json
from rookery.schemas.errors import Failed
from rookery.schemas.facts.run_progress import TURN_ENDS
from rookery.schemas.facts.turn import RUN_FACTS
from rookery.schemas.replies import RunAnswer
from rookery.schemas.run import RunResult

__all__ = ["RunReplies"]

ENVELOPE_BYTES = 1 << 10
"""Room in a reply for the fields beside the result."""
CODEC: FactCodec[Any] = FactCodec(RUN_FACTS)


class RunReplies:
    """One per node; lives on the bus's loop."""

    def __init__(
        self,
        journal: Journal,
        blobs: Blobs,
        request_endpoint: RequestEndpoint,
        *,
        executes_runs: bool = True,
    ) -> None:
        """``executes_runs``: whether this node's sessions have their runs executed by nodes, so
        that a receipt has the form of a result."""
        self._journal, self._blobs, self._request_endpoint = journal, blobs, request_endpoint
        self._executes_runs = executes_runs

    @property
    def handlers(self) -> Mapping[type[Effect], EffectHandler]:
        return {SendReceipt: self.send_receipt, SendPastResult: self.send_past_result}

    async def send_receipt(self, effect: SendReceipt) -> None:
        receipt = effect.receipt
        answer = RunAnswer.of_unstarted(receipt) if self._executes_runs else receipt
        self._send((effect.reply_to,), answer)

    async def send_past_result(self, effect: SendPastResult) -> None:
        """Send the result from the fact at the effect's sequence."""
        run_id, session = effect.run_id, effect.session
        stored = await self._journal.at(effect.at_sequence)
        for fact in () if stored is None else CODEC.decode(stored.body):
            if isinstance(fact, TURN_ENDS) and fact.run == run_id:
                result = RunResult() if fact.result is UNSET else fact.result
                reply_to, blob = (effect.reply_to,), fact.result_blob
                if blob is UNSET:
                    self.send_result(session, run_id, reply_to, result)
                else:
                    await self.send_stored_result(session, run_id, reply_to, result, blob)
                return
        raise Failed("FACT_UNKNOWN", f"message {effect.at_sequence} has no end of run {run_id}")

    def send_result(
        self, session: str, run_id: str, reply_to: Sequence[str], result: RunResult
    ) -> None:
        self._send(reply_to, RunAnswer.of(result, run_id, session))

    async def send_stored_result(
        self, session: str, run_id: str, reply_to: Sequence[str], part: RunResult, blob: str
    ) -> None:
        """Send the result of which the fact has only a part, as far as it fits into a reply."""
        whole = await self._blobs.get(blob)
        if len(whole) + ENVELOPE_BYTES <= self._request_endpoint.reply_bytes_max:
            answer = RunAnswer.of(msgspec.json.decode(whole, type=RunResult), run_id, session)
        else:
            part_answer = RunAnswer.of(part, run_id, session)
            answer = msgspec.structs.replace(part_answer, result_blob=blob)
        self._send(reply_to, answer)

    def _send(self, reply_to: Sequence[str], answer: msgspec.Struct) -> None:
        body = encode_json(answer)
        self._request_endpoint.reply([ReplyMessage(subject, body) for subject in reply_to])
