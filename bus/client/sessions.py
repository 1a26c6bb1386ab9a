"""The client's methods for limits and rights of sessions. ``rookery.actors.admission`` and
``rookery.actors.protection`` have the rules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from rookery.schemas.protection.rights import Rights
from rookery.schemas.run import Language, SessionLimits

__all__ = ["SessionsMixin"]


class SessionsMixin(ABC):
    """The part of ``Client`` for limits and rights."""

    @abstractmethod
    async def ask(self, verb: str, key: str, body: object = None) -> dict[str, Any]:
        """Send a request and return its durable reply."""

    async def create(
        self,
        session: str,
        *,
        language: Language | str = Language.PYTHON,
        limits: SessionLimits | Mapping[str, int] | None = None,
        rights: Rights | Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Create a session with limits and rights of its own before its first run. A duplicate
        changes nothing."""
        initial = SessionLimits() if limits is None else limits
        body: dict[str, Any] = {"language": language, "limits": initial}
        if rights is not None:
            body["grants"] = rights
        return await self.ask("create", session, body)

    async def set_limits(self, session: str, **limits: int) -> dict[str, Any]:
        """Change a session's limits from its next run on; absent ones keep their value."""
        return await self.ask("limits", session, limits)

    async def narrow_rights(
        self, session: str, rights: Rights | Mapping[str, Any]
    ) -> dict[str, Any]:
        """Let a session's runs call only what these rights allow, too, from the next call on."""
        return await self.ask("limits", session, {"grants": rights})

    async def revoke_rights(
        self, session: str, rights: Rights | Mapping[str, Any], *, reason: str = "", actor: str = ""
    ) -> dict[str, Any]:
        """Leave a session, and all that descend from it, only these rights of those it has. The
        client needs the role ``operator``."""
        body = {"grants": rights, "reason": reason, "actor": actor}
        return await self.ask("revoke", session, body)
