"""The origin of an input, in the words of the contract."""

from __future__ import annotations

from enum import StrEnum

from rookery.schemas.enums import Variant

__all__ = ["InputSource", "WorkOrigin"]


class WorkOrigin(StrEnum):
    """The origin of a session's work."""

    EXTERNAL = "External"
    INTERNAL = "Internal"
    INGEST = "Ingest"


class InputSource(Variant):
    """The ingress an input came by."""

    TCP = "tcp"
    UDS = "uds"
    STDIN = "stdin"
    WEBHOOK = "webhook"
    RPC = "rpc"

    @property
    def work_origin(self) -> WorkOrigin:
        """Every ingress is external."""
        return WorkOrigin.EXTERNAL
