"""Reads and uploads of clients: their queries, and their channels in the contract."""

from rookery.schemas.reads.channels import READS, Read
from rookery.schemas.reads.queries import (
    PAGE_MESSAGES_MAX,
    AtQuery,
    ChunkQuery,
    JournalQuery,
    JournalState,
    LastQuery,
    PageQuery,
    StateQuery,
    UploadDone,
)

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
