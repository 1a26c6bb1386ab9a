"""A service outside of the realm, called by request-reply on a subject of its own.

The service may publish to the realm's answers and to no inbox, so that it can answer a node without
a permission for the replies to it. After a lost connection the request is repeated under its id,
because its reply may have been lost too; the service recognises a duplicate by the id.
"""

from __future__ import annotations

import asyncio

from rookery.bus.clock import entropy
from rookery.bus.commands.command_messages import command_headers
from rookery.bus.jetstream_api import NO_RESPONDERS, status_of
from rookery.bus.nats import Connection, Outgoing, ReplyInbox
from rookery.bus.subjects import Subjects, is_plain
from rookery.schemas.errors import Failed, Refused

__all__ = ["NatsExternalService"]

_SECRET_BYTES = 16
_RESERVED = ("$", "rookery.")
_PAUSE_S = 0.2
"""Pause between two attempts without a listener or a connection."""


class NatsExternalService:
    """Port ``ExternalService``. To be used on the event loop of its connection."""

    def __init__(self, connection: Connection, subjects: Subjects, subject: str) -> None:
        if not is_plain(subject) or subject.startswith(_RESERVED):
            raise Refused(
                "INVALID_SUBJECT",
                f"{subject[:80]!r} cannot be the subject of an outside service",
                hint="use a subject without wildcards, outside of the server's and rookery's own",
            )
        self._connection, self._subject = connection, subject
        self._answers = ReplyInbox(subjects.service_answers(entropy(_SECRET_BYTES).hex()))
        self._opening = asyncio.Lock()
        self._is_open = False

    async def ask(self, request_id: str, body: bytes, *, silence_s_max: float) -> bytes:
        loop = asyncio.get_running_loop()
        await self._open()
        reply = self._answers.expect()
        request = Outgoing(self._subject, body, reply.subject, command_headers(request_id))
        reason, since_s = "got no reply", loop.time()
        while True:
            if not self._connection.send([request]):
                await asyncio.sleep(_PAUSE_S)
                since_s = loop.time()
                continue
            message = await reply.next(since_s + silence_s_max - loop.time())
            if message is not None and status_of(message) != NO_RESPONDERS:
                return message.body
            if message is not None:
                reason = "had no listener"
                await asyncio.sleep(_PAUSE_S)
            if loop.time() >= since_s + silence_s_max:
                text = f"a request to {self._subject} {reason} for {silence_s_max} s"
                raise Failed("NO_ANSWER", text)

    async def _open(self) -> None:
        """Subscribe to the answers, once; it survives reconnects."""
        async with self._opening:
            if not self._is_open:
                await self._connection.subscribe(self._answers.wildcard, self._answers.route)
                for event in (self._connection.on_reconnect, self._connection.on_disconnect):
                    event.append(self._answers.wake_all)
                self._is_open = True
