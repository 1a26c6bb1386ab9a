"""Reads and uploads of clients: their queries, and their channels in the contract."""

from __future__ import annotations

from typing import Annotated, Final, Literal, NamedTuple, get_args

import msgspec
from msgspec import Meta

__all__ = [
    "PAGE_MESSAGES_MAX",
    "READS",
    "AtQuery",
    "ChunkQuery",
    "JournalQuery",
    "JournalState",
    "LastQuery",
    "PageQuery",
    "Read",
    "StateQuery",
    "UploadDone",
]

# --- queries --------------------------------------------------------------------------------------

# Reads and uploads of clients, which any node of the realm answers by request-reply.
#
# A page of the journal is answered with one message for each stored one (its headers say
# ``Nats-Sequence``, ``Nats-Subject`` and ``Nats-Time-Stamp``) and then one with a status; the last
# message and that at a sequence as JetStream's ``STREAM.MSG.GET`` answers. All reply subjects begin
# with ``_INBOX.``.


PAGE_MESSAGES_MAX: Final = 1_024

Family = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,31}$")]
Key = Annotated[str, Meta(min_length=1, max_length=512)]
Sequence = Annotated[int, Meta(ge=0, le=(1 << 63) - 2)]


class _JournalQuery(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="read"
):
    """The base of queries to the journal."""


class PageQuery(_JournalQuery, frozen=True, tag="page"):
    """The next messages above ``after``, of any family or key where none is named."""

    after: Sequence = 0
    family: Family | None = None
    key: Key | None = None
    messages_max: Annotated[int, Meta(ge=1, le=PAGE_MESSAGES_MAX)] = PAGE_MESSAGES_MAX


class LastQuery(_JournalQuery, frozen=True, tag="last"):
    """The last message, of any family or key where none is named."""

    family: Family | None = None
    key: Key | None = None


class AtQuery(_JournalQuery, frozen=True, tag="at"):
    """The message at ``sequence``."""

    sequence: Sequence


class StateQuery(_JournalQuery, frozen=True, tag="state"):
    """Where the journal begins and ends, and what was removed above ``after``."""

    after: Sequence = 0


JournalQuery = PageQuery | LastQuery | AtQuery | StateQuery


class JournalState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to ``StateQuery``."""

    first: int
    last: int
    removed: tuple[int, int] | None = None
    """The first and the last removed sequence above the query's, if any is missing."""
    copies: int = 1
    """Of the journal's stream; with several, a new leader may be behind for a moment."""


class ChunkQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A chunk of a blob, answered with its bytes. The first has the header ``Rookery-Chunks``, the
    number of chunks."""

    source: Literal["any", "leader"] = "any"
    """``any`` replica may lag, and the ``leader`` answers as ``STREAM.MSG.GET``."""


class UploadDone(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Ends an upload: the node joins its pieces, checks their digest and stores them as a blob."""

    digest: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
    count: Annotated[int, Meta(ge=1)]
    """Number of pieces."""


# --- channels -------------------------------------------------------------------------------------


class Read(NamedTuple):
    """A read or an upload: its subject, its queries, and what answers them."""

    address: str
    queries: tuple[type[msgspec.Struct], ...]
    answer: str


_ROOT: Final = "rookery.{realm}"
_CHUNK: Final = "A chunk, with its bytes as the body; an empty request is one for any replica's."
_STORED: Final = "An empty object, as soon as the blob is stored."

READS: Final[dict[str, Read]] = {
    "read.journal": Read(
        f"{_ROOT}.read.journal",
        get_args(JournalQuery),
        "A page: one message for each stored one, then one with a status. ``last`` and ``at``: a "
        "reply of STREAM.MSG.GET. ``state``: a JournalState.",
    ),
    "read.blobs": Read(f"{_ROOT}.read.blobs.{{digest}}.{{n}}", (ChunkQuery,), _CHUNK),
    "read.images": Read(f"{_ROOT}.read.images.{{digest}}.{{n}}", (ChunkQuery,), _CHUNK),
    "upload": Read(f"{_ROOT}.upload.{{id}}.done", (UploadDone,), _STORED),
    "upload_image": Read(f"{_ROOT}.upload_image.{{id}}.done", (UploadDone,), _STORED),
}
"""What clients read and upload, by the name of its channel. Piece ``n`` of an upload is published
to the same subject with ``n`` in the place of ``done``; it has at most half a mebibyte."""
