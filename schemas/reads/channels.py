"""The channels of reads and uploads in the contract."""

from __future__ import annotations

from typing import Final, NamedTuple, get_args

import msgspec

from rookery.schemas.reads.queries import ChunkQuery, JournalQuery, UploadDone

__all__ = ["READS", "Read"]


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
