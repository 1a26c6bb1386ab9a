"""Claims of session ids, by the machine session_claim.

A claim has a token. Closing it frees the id only while the token is the holder's, because after an
explicit release another claim may hold it. Each runtime has a registry of its own, and the process
has one for all other callers. Across nodes the partition's owner decides, so claims are not
journaled.
"""

from __future__ import annotations

from collections import deque
from threading import Lock
from types import TracebackType
from typing import Final

from rookery.actors.admission.session_claim_machine import (
    CLAIM,
    ClaimAcquired,
    ClaimReleased,
    HeldClaims,
)
from rookery.actors.kernel.machines import TransitionRejected
from rookery.schemas.errors import Refused

__all__ = ["PROCESS_CLAIMS", "ClaimRegistry", "SessionClaim"]


class SessionClaim:
    """A held session id. Close it or use it as a context manager; closing twice is harmless, and
    garbage collection closes it."""

    def __init__(self, session_id: str, registry: ClaimRegistry) -> None:
        self.session_id = session_id
        self.token = object()
        """Distinguishes this claim from any other on the same id."""
        self._registry = registry

    def close(self) -> None:
        """Free the id, unless another claim holds it by now."""
        self._registry.release_token(self.session_id, self.token)

    def __del__(self) -> None:
        self._registry.release_later(self.session_id, self.token)

    def __enter__(self) -> SessionClaim:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"SessionClaim({self.session_id!r})"


class ClaimRegistry:
    """The holders of session ids. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._state = HeldClaims()
        self._holders: dict[str, object] = {}
        self._late_releases: deque[tuple[str, object]] = deque()

    def try_acquire(self, session_id: str) -> SessionClaim:
        """Claim ``session_id``; ``Refused`` with ``SESSION_IDENTITY_IN_USE`` if it is held."""
        with self._lock:
            self._release_late()
            try:
                fact = CLAIM.decide(
                    self._state, "try_acquire", ClaimAcquired(session_id=session_id)
                )
            except TransitionRejected:
                raise Refused(
                    "SESSION_IDENTITY_IN_USE", f"session identity already claimed: {session_id}"
                ) from None
            self._state = CLAIM.evolve(self._state, fact)
            claim = SessionClaim(session_id, self)
            self._holders[session_id] = claim.token
            return claim

    def release(self, session_id: str) -> None:
        """Free ``session_id``, whichever claim holds it; a free one stays free."""
        with self._lock:
            self._release(session_id)

    def release_token(self, session_id: str, token: object) -> None:
        """Free the id if the claim with this token holds it."""
        with self._lock:
            self._release_token(session_id, token)

    def release_later(self, session_id: str, token: object) -> None:
        """Free the id of a garbage-collected claim at the next ``try_acquire``. Collection may
        happen while this thread holds the lock."""
        self._late_releases.append((session_id, token))

    def _release_late(self) -> None:
        while self._late_releases:
            self._release_token(*self._late_releases.popleft())

    def _release_token(self, session_id: str, token: object) -> None:
        if self._holders.get(session_id) is token:
            self._release(session_id)

    def _release(self, session_id: str) -> None:
        fact = CLAIM.decide(self._state, "release", ClaimReleased(session_id=session_id))
        self._state = CLAIM.evolve(self._state, fact)
        self._holders.pop(session_id, None)


PROCESS_CLAIMS: Final = ClaimRegistry()
"""The registry of callers without a runtime."""
