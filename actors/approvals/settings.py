"""What a realm has decided about its approvals: data, read from its configuration by ``ops``."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["ApprovalSettings"]


class ApprovalSettings(NamedTuple):
    """The same on every node of a realm."""

    realm: str = "default"
    dispatchers: tuple[str, ...] = ("inbox",)
    """Who is asked; nobody is an answer, too."""
    escalate_to: tuple[str, ...] = ()
    escalate_after_ms: int = 0
    """0 never."""
    timeout_ms: int = 24 * 3_600_000
    grant_ttl_ms: int = 24 * 3_600_000
    session_grant_ttl_ms: int = 24 * 3_600_000
    require_keys: bool = False
    """An answer that no approver's key has signed does not count."""
    root_key: str = ""
    """Public key, in hex, that may name approvers whoever else may; without one the first approver
    is taken as named."""
