"""The door in memory: the twin of ``rookery.bus.commands.request_endpoint``. ``MemorySwitch`` is
the server's part.

Whoever asks listens on a subject first. A request that no node takes is answered at once, as the
server and the doors would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from rookery.bus.commands.headers import answerable
from rookery.bus.commands.request_endpoint import refused, unowned
from rookery.bus.ports import Answer, Delivery
from rookery.bus.subjects import partition_of

__all__ = ["MemoryDoor", "MemorySwitch"]

PAYLOAD_BYTES_MAX = 1 << 20


class MemorySwitch:
    """All open doors of a realm, and who waits for answers."""

    def __init__(self) -> None:
        self.doors: list[MemoryDoor] = []
        self._listeners: dict[str, Callable[[Answer], None]] = {}

    def listen(self, subject: str, on_answer: Callable[[Answer], None]) -> None:
        """From now on take the answers to ``subject``."""
        self._listeners[subject] = on_answer

    def ask(self, request: Delivery) -> None:
        """Bring a request to the owner of its partition."""
        partition = partition_of(request.key)
        owners = [door for door in self.doors if partition in door.owned]
        for door in owners:
            door.take(request)
        if not owners:
            self.publish([unowned(request.reply_to)])

    def publish(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            listener = self._listeners.get(answer.reply_to)
            if listener is not None:
                listener(answer)


class MemoryDoor:
    """Port ``Door``."""

    def __init__(self, switch: MemorySwitch) -> None:
        self._switch = switch
        self._deliver: Callable[[list[Delivery]], None] | None = None
        self.owned: frozenset[int] = frozenset()
        self.answer_bytes_max = PAYLOAD_BYTES_MAX

    async def open(self, deliver: Callable[[list[Delivery]], None]) -> None:
        self._deliver = deliver
        self._switch.doors.append(self)

    async def own(self, partitions: frozenset[int]) -> None:
        self.owned = partitions

    def answer(self, answers: Sequence[Answer]) -> None:
        """As the server would have it: an answer that is too large becomes one that says so."""
        self._switch.publish([_fitting(a) for a in answers if answerable(a.reply_to)])

    async def close(self) -> None:
        self._deliver = None
        self.owned = frozenset()
        if self in self._switch.doors:
            self._switch.doors.remove(self)

    def take(self, request: Delivery) -> None:
        asyncio.get_running_loop().call_soon(self._hand_over, request)

    def _hand_over(self, request: Delivery) -> None:
        if self._deliver is not None:
            self._deliver([request])


def _fitting(answer: Answer) -> Answer:
    size = len(answer.body)
    if size <= PAYLOAD_BYTES_MAX:
        return answer
    told = f"{size} bytes, the limit is {PAYLOAD_BYTES_MAX}"
    return refused(answer.reply_to, "PAYLOAD_TOO_LARGE", told)
