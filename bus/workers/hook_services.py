"""Invocations of hooks on the wire: a node asks on the subject of the hook, and one process that
serves it answers.

``rookery.<realm>.hook.<hook>``, queue group ``rookery``: body ``HookInvocation`` (see
``schemas/hook_protocol.py``), header ``Nats-Msg-Id`` with its id. The ``HookAnswer`` goes to the
reply subject, ``rookery.<realm>.verdict.<hook>.<secret of the node>.<n>``: a credential of the role
``hook`` may publish to those of its own hook and to nothing else. The first answer counts. Any
other, and one after the node has stopped to wait, is dropped and counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Final

import nats.errors

from rookery.bus.commands.command_messages import command_headers
from rookery.bus.event_loop import TaskSet
from rookery.bus.jetstream_api import NO_RESPONDERS, status_of
from rookery.bus.nats import Connection, Message, Outgoing
from rookery.bus.nats.batch_client import Subscription
from rookery.bus.ports.commands import HookHandler
from rookery.bus.subjects import Subjects, decode_token
from rookery.bus.workers.client import ResultInbox
from rookery.bus.workers.protocol import QUEUE
from rookery.schemas.errors import Failed

__all__ = ["NatsHookEndpoint", "NatsHookServices"]

log = logging.getLogger(__name__)

RETRY_S: Final = 0.01
COUNTED_MAX: Final = 1_000
"""Hooks whose late answers are counted."""
AT_ONCE_MAX: Final = 64
"""Invocations that a process works on; the others wait."""


class NatsHookServices:
    """Port ``HookServices``. To be used on the event loop of its connection."""

    def __init__(self, connection: Connection, subjects: Subjects) -> None:
        self._connection, self._subjects = connection, subjects
        self._late: Counter[str] = Counter()
        self._answers = ResultInbox(connection, subjects.hook_answers, self._count_late)

    @property
    def late(self) -> Mapping[str, int]:
        return self._late

    async def close(self) -> None:
        await self._answers.close()

    async def ask(self, hook: str, invocation: str, body: bytes, *, patience_s: float) -> bytes:
        await self._answers.open()
        subject, headers = self._subjects.hook(hook), command_headers(invocation)
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + patience_s
        while True:
            answer: asyncio.Future[Message] = loop.create_future()
            with self._answers.listen(hook, partial(self._on_answer, answer)) as reply:
                if self._connection.send([Outgoing(subject, body, reply, headers)]):
                    message = await answer
                    if status_of(message) != NO_RESPONDERS:
                        return message.body
            if loop.time() >= give_up_s:
                raise Failed("NO_ANSWER", f"no process serves hook {hook}")
            await asyncio.sleep(RETRY_S)

    def _on_answer(self, answer: asyncio.Future[Message], message: Message) -> None:
        if answer.done():
            self._count_late(message)
        else:
            answer.set_result(message)

    def _count_late(self, message: Message) -> None:
        """The hook is in the subject, on which only its own processes may publish."""
        if status_of(message) == NO_RESPONDERS:
            return
        hook = decode_token(message.subject.split(".")[3])
        if hook in self._late or len(self._late) < COUNTED_MAX:
            self._late[hook] += 1


class NatsHookEndpoint:
    """Port ``HookEndpoint``: serves one hook. To be used on the event loop of its connection."""

    def __init__(self, connection: Connection, subjects: Subjects, hook: str) -> None:
        self._connection, self._subjects, self._hook = connection, subjects, hook
        self._subscription: Subscription | None = None
        self._tasks, self._at_once = TaskSet(), asyncio.Semaphore(AT_ONCE_MAX)
        self._handle: HookHandler

    async def open(self, handle: HookHandler) -> None:
        self._handle = handle
        subject = self._subjects.hook(self._hook)
        self._subscription = await self._connection.subscribe(
            subject, self._on_messages, queue=QUEUE
        )

    async def close(self) -> None:
        if self._subscription is not None:
            await self._subscription.unsubscribe()
        await self._tasks.wait_idle()
        with suppress(nats.errors.Error):
            await self._connection.client.flush()

    def _on_messages(self, messages: list[Message]) -> None:
        for message in messages:
            if self._subjects.is_hook_answer(message.reply, self._hook):
                self._tasks.start(self._answer(message))
            else:
                log.warning("invocation without a reply subject of the hook dropped")

    async def _answer(self, message: Message) -> None:
        async with self._at_once:
            body = await self._handle(message.body)
        self._connection.send([Outgoing(message.reply, body)])
