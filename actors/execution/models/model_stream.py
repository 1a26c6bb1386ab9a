"""``AnswerStream``: sends the pieces of a model's answer to its readers while they arrive.

They are core messages on the subject of the session's live output, and lead to nothing: what counts
is the recorded answer. Pieces of one part are joined for a moment, so that a fast model costs its
node little. A later attempt replaces the pieces of an earlier one; so does ``cut``, at once.
"""

from __future__ import annotations

import asyncio
from typing import Final

from rookery.actors.execution.result_sender import PieceCollector, SendOutput
from rookery.schemas.agents import AnswerDelta, AnswerDeltas
from rookery.schemas.codec import encode_json
from rookery.schemas.facts import model
from rookery.schemas.run import OutputMessage

__all__ = ["AnswerStream"]

JOINED_S: Final = 0.03


class AnswerStream:
    """One per attempt; created and closed on the bus's loop."""

    def __init__(self, send: SendOutput, session: str, question: model.Requested) -> None:
        self._send_output, self._session, self._question = send, session, question
        self._loop = asyncio.get_running_loop()
        self._began_s, self._first_s = self._loop.time(), -1.0
        self._number = 1
        """Of the next piece that is sent."""
        self._collector = PieceCollector[AnswerDelta](JOINED_S, self._send)

    @property
    def first_token_ms(self) -> int | None:
        """How long the first piece took; ``None`` if there was none."""
        return None if self._first_s < 0 else round((self._first_s - self._began_s) * 1_000)

    def add(self, delta: AnswerDelta) -> None:
        """Send the piece soon. Runs on the thread that reads the answer."""
        if self._first_s < 0:
            self._first_s = self._loop.time()
        self._collector.add(delta, len(delta.text))

    def close(self, *, cut: bool) -> None:
        """Send the rest; ``cut``: the attempt leads to no answer, so its pieces are void."""
        self._collector.flush()
        if cut and self._number > 1:
            self._publish((), cut=True)

    def _send(self, added: list[AnswerDelta]) -> None:
        deltas = tuple(_joined(added))
        self._publish(deltas)
        self._number += len(deltas)

    def _publish(self, deltas: tuple[AnswerDelta, ...], *, cut: bool = False) -> None:
        question = self._question
        message = OutputMessage(
            session_id=self._session,
            run_id=question.run,
            number=0,
            pieces=(),
            answer=AnswerDeltas(
                step=question.step,
                attempt=question.attempt,
                number=self._number,
                deltas=deltas,
                cut=cut,
            ),
        )
        self._send_output(self._session, encode_json(message))


def _joined(added: list[AnswerDelta]) -> list[AnswerDelta]:
    """Neighbours of one part as one piece."""
    found: list[AnswerDelta] = []
    for delta in added:
        last = found[-1] if found else None
        if last is not None and (last.part, last.kind) == (delta.part, delta.kind):
            found[-1] = AnswerDelta(delta.part, delta.kind, last.text + delta.text)
        else:
            found.append(delta)
    return found
