"""Where an input comes from, in the words of the seed."""

from __future__ import annotations

from enum import StrEnum

from rookery.schemas.enums import Variant

__all__ = ["InputSource", "WorkOrigin"]


class WorkOrigin(StrEnum):
    """Who gives a session work."""

    EXTERNAL = "External"
    INTERNAL = "Internal"
    INGEST = "Ingest"


class InputSource(Variant):
    """By which door an input came."""

    TCP = "tcp"
    UDS = "uds"
    STDIN = "stdin"
    WEBHOOK = "webhook"
    RPC = "rpc"

    @property
    def work_origin(self) -> WorkOrigin:
        """Every door leads outside."""
        return WorkOrigin.EXTERNAL
