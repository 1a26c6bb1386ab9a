"""Pages of a stream by JetStream's direct get, which any replica may answer."""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from rookery.bus.nats.connection import Connection, Message, Outgoing
from rookery.bus.nats.frames import header_value
from rookery.bus.nats.jetstream_api import status_of
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import Failed

__all__ = ["DirectPage", "direct_page"]

_PAGE_MESSAGES: Final = 256
_PAGE_BYTES_MAX: Final = 8 << 20
_SILENCE_S_MAX: Final = 5.0
_PAGE_ENDS: Final = frozenset({204, 404})
"""The page is complete; the stream has no such message."""


class DirectPage(NamedTuple):
    """The messages of one page, in the stream's order."""

    messages: list[Message]
    has_more: bool
    """Whether the replica holds more messages behind this page."""


async def direct_page(
    connection: Connection,
    stream: str,
    subject: str,
    after: int,
    *,
    messages_max: int = _PAGE_MESSAGES,
) -> DirectPage:
    """The next messages on ``subject`` above sequence ``after``.

    A slow link may take any time, as long as messages keep arriving. ``Failed``
    SERVER_UNREACHABLE after a silence, or if no replica serves the stream.
    """
    messages: list[Message] = []
    end: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    def on_message(message: Message) -> None:
        if not status_of(message):
            messages.append(message)
        elif not end.done():
            end.set_result(message)

    query = {
        "seq": after + 1,
        "next_by_subj": subject,
        "batch": messages_max,
        "max_bytes": _PAGE_BYTES_MAX,
    }
    with connection.replies.listen(on_message) as reply:
        request = Outgoing(f"$JS.API.DIRECT.GET.{stream}", encode_json(query), reply)
        if not connection.send([request]):
            raise Failed("SERVER_UNREACHABLE", "there is no connection to the server")
        while not end.done():
            arrived = len(messages)
            await asyncio.wait({end}, timeout=_SILENCE_S_MAX)
            if not end.done() and len(messages) == arrived:
                text = f"the stream {stream} sent nothing for {_SILENCE_S_MAX} s"
                raise Failed("SERVER_UNREACHABLE", text)
    last = end.result()
    if status_of(last) not in _PAGE_ENDS:
        text = f"no replica serves the stream {stream}: status {status_of(last)}"
        raise Failed("SERVER_UNREACHABLE", text)
    pending = header_value(last.header, b"Nats-Num-Pending")
    return DirectPage(messages, pending not in ("", "0"))
