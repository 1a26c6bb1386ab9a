"""Reads on the wire: the queries of clients, and the answers of nodes.

A client has no permission for JetStream's own subjects, because the server publishes the answers to
them wherever a client names. The node builds the server's query from a checked one and names the
client's inbox as its reply subject, so the server answers the client itself.

``rookery.<realm>.read.journal``, body a ``JournalQuery`` (``schemas/reads``): ``page`` is answered
like a direct get of JetStream, one message for each stored one and then one with a status; ``last``
and ``at`` like ``STREAM.MSG.GET``; ``state`` with a ``JournalState``.

``rookery.<realm>.read.blobs.<digest>.<n>``, body empty or a ``ChunkQuery``: chunk ``n`` of a blob,
as a direct get; with ``"source": "leader"`` as ``STREAM.MSG.GET``. Chunk 0 has the number of chunks
in the header ``Rookery-Chunks``. ``read.images`` is the same for memory images of sessions.

``rookery.<realm>.upload.<id>.<n>``: piece ``n`` of an upload, at most half a mebibyte; ``id`` is 32
hex digits, chosen at random. ``rookery.<realm>.upload.<id>.done``, body ``UploadDone``: the node
checks the digest of the joined pieces and stores them as a blob. ``upload_image`` is the same for
images.

An error has the header ``Rookery-Code`` and the body of every refused request. All reply subjects
begin with ``_INBOX.``.
"""

from __future__ import annotations

from typing import Final

from rookery.bus.commands.headers import CODE, is_reply_subject
from rookery.bus.nats import Message

__all__ = ["CODE_HEADER", "DONE", "QUEUE", "is_inbox", "is_page_end"]

QUEUE: Final = "rookery"
DONE: Final = "done"
CODE_HEADER: Final = CODE.encode()

_INBOX: Final = "_INBOX."


def is_inbox(subject: str) -> bool:
    """Whether a node may have the server publish an answer to this subject."""
    return subject.startswith(_INBOX) and is_reply_subject(subject)


def is_page_end(message: Message) -> bool:
    """Whether the message ends a page: a status of the server, or an error of the node."""
    return message.header[8:9] == b" " or CODE_HEADER in message.header
