"""What a run sends to its clients: its output while it goes on, and its result."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Generic, Protocol, TypeVar

from rookery.actors.kernel import Effect
from rookery.actors.kernel.executors import EffectHandler
from rookery.actors.turns.effects import SendResult, SendStoredResult
from rookery.schemas.codec import encode_json
from rookery.schemas.run import OutputMessage, OutputPiece, OutputStream, RunResult

__all__ = [
    "LiveOutput",
    "PieceCollector",
    "ResultSender",
    "SendOutput",
]

# --- result sender --------------------------------------------------------------------------------

# ``ResultSender``: sends the results of runs whose turns have ended, whichever side drove them.


class ResultReplies(Protocol):
    """Sends the result of a session's run to reply subjects."""

    def send_result(
        self, session: str, run_id: str, reply_to: Sequence[str], result: RunResult
    ) -> None: ...

    async def send_stored_result(
        self, session: str, run_id: str, reply_to: Sequence[str], part: RunResult, blob: str
    ) -> None:
        """Send a result whose whole is in the blob store."""


class ResultSender:
    """One per node; lives on the bus's loop."""

    def __init__(self, replies: ResultReplies) -> None:
        self._replies = replies

    @property
    def handlers(self) -> Mapping[type[Effect], EffectHandler]:
        return {SendResult: self.send_result, SendStoredResult: self.send_stored_result}

    def send_result(self, effect: SendResult) -> None:
        self._replies.send_result(effect.session, effect.run_id, effect.reply_to, effect.result)

    async def send_stored_result(self, effect: SendStoredResult) -> None:
        session, run_id, part = effect.session, effect.run_id, effect.result
        await self._replies.send_stored_result(
            session, run_id, effect.reply_to, part, effect.result_blob
        )


# --- live output ----------------------------------------------------------------------------------

# ``LiveOutput``: sends the output of a run while the run goes on; the result has it once more.
#
# Pieces are collected and sent at most twenty times a second, so that a program that prints much
# costs the node little. What exceeds a message's size is not sent: its numbers are missing. A step
# that is recorded was executed before, and its output was sent then.


SendOutput = Callable[[str, bytes], None]
"""Send a message to all that follow the output of a session."""

INTERVAL_S: Final = 0.05
CHARS_MAX: Final = 128 << 10
"""Of one message: as JSON it has less than a megabyte."""


Piece = TypeVar("Piece")


class PieceCollector(Generic[Piece]):
    """Collects pieces on any thread, and gives them to ``send`` together, on the bus's loop. What
    exceeds a message's size until then is dropped."""

    def __init__(self, interval_s: float, send: Callable[[list[Piece]], None]) -> None:
        self._interval_s, self._send = interval_s, send
        self._loop, self._loop_thread = asyncio.get_running_loop(), threading.get_ident()
        self._pieces: list[Piece] = []
        self._chars = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_due = False
        self._lock = threading.Lock()

    def add(self, piece: Piece, chars: int) -> None:
        """Send the piece, which has so many characters, soon."""
        with self._lock:
            if self._chars + chars > CHARS_MAX:
                return
            self._chars += chars
            self._pieces.append(piece)
            starts, self._is_due = not self._is_due, True
        if starts and threading.get_ident() == self._loop_thread:
            self._start_timer()
        elif starts:
            self._loop.call_soon_threadsafe(self._start_timer)

    def flush(self) -> None:
        """Send what has been added."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        with self._lock:
            added, self._pieces = self._pieces, []
            self._chars, self._is_due = 0, False
        if added:
            self._send(added)

    def _start_timer(self) -> None:
        if self._is_due and self._timer is None:
            self._timer = self._loop.call_later(self._interval_s, self.flush)


class LiveOutput:
    """One per execution of a run; created and flushed on the bus's loop."""

    def __init__(
        self, send: SendOutput, session: str, run_id: str, was_sent: Callable[[], bool]
    ) -> None:
        """``was_sent``: whether the program repeats a step whose output was sent."""
        self._send, self._session, self._run_id = send, session, run_id
        self._was_sent = was_sent
        self._collector = PieceCollector[tuple[int, OutputPiece]](INTERVAL_S, self._send_pieces)
        self.flush = self._collector.flush

    def add(self, number: int, stream: OutputStream, text: str) -> None:
        """Send the piece soon. Runs on the thread that executes the program."""
        if not self._was_sent():
            self._collector.add((number, OutputPiece(stream, text)), len(text))

    def _send_pieces(self, added: list[tuple[int, OutputPiece]]) -> None:
        while added:
            first = added[0][0]
            count = next(
                (n for n, (number, _) in enumerate(added) if number != first + n), len(added)
            )
            message = OutputMessage(
                session_id=self._session,
                run_id=self._run_id,
                number=first,
                pieces=tuple(piece for _, piece in added[:count]),
            )
            self._send(self._session, encode_json(message))
            del added[:count]
