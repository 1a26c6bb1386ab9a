"""The approvers of a realm and their keys, folded from the facts under ``_approvers``.

Every node follows these facts. After any error a node accepts no signed answer until it has read
all of them again, because a fact that it missed may have revoked a key.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from rookery.actors.approvals import APPROVERS_KEY, Approver, SessionApprovals
from rookery.actors.approvals.evolve import evolve
from rookery.bus.ports import Bus, Filter, StoredMessage
from rookery.schemas.codec import FactCodec
from rookery.schemas.digest import ChainCursor
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import CODES, CodedError, Failed
from rookery.schemas.facts import approval as facts
from rookery.schemas.facts.approval import (
    ApproverAdded,
    ApproverRevoked,
)

__all__ = ["Approvers", "ListedApproverKey", "change_count", "first_damage", "keys_of"]

log = logging.getLogger(__name__)

_CODEC: FactCodec[facts.ApprovalFact] = FactCodec(facts.APPROVAL_FACTS)
RETRY_S: Final = 1.0
FAMILY: Final = "approval"
NOT_READ_YET: Final = "not read yet"


class Approvers:
    """The valid keys. They are updated on the bus's loop and read from any thread."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._position, self._cursor = 0, ChainCursor()
        self._state = SessionApprovals()
        self.unavailable_reason = NOT_READ_YET
        """Why no key is valid now; empty while all facts are known."""

    def approver_of(self, key_id: str) -> Approver | None:
        """The owner of a key; ``None`` if the key was revoked, or may have been."""
        return None if self.unavailable_reason else self._state.approvers.get(key_id)

    async def refresh(self) -> None:
        """Read all facts; before this, no key is known."""
        self._position, self._cursor = 0, ChainCursor()
        self._state = SessionApprovals()
        end = await self._bus.journal.end()
        for stored in await self._bus.journal.read(EntityId(FAMILY, APPROVERS_KEY)):
            self._apply(stored)
        self._position = max(self._position, end)  # Other keys' messages leave no gap.
        self.unavailable_reason = ""

    async def open(self) -> None:
        """Read all facts. If they cannot be read because one is damaged or foreign, no key is known
        and everything else works; ``unavailable_reason`` says why."""
        try:
            await self.refresh()
        except CodedError as error:
            if CODES[error.code].retryable:
                raise
            self._on_error(error)

    async def run(self) -> None:
        """Follow every change until cancelled."""
        while True:
            try:
                await self._follow()
            except Exception as error:  # After any error no key is trusted.
                self._on_error(error)
            await asyncio.sleep(RETRY_S)

    async def _follow(self) -> None:
        if self.unavailable_reason:
            await self.refresh()
            log.info("approvers read")
        async for page in self._bus.feed.follow(Filter(FAMILY, APPROVERS_KEY), self._position):
            for stored in page:
                self._apply(stored)

    def _apply(self, stored: StoredMessage) -> None:
        if stored.sequence <= self._position:
            return
        if stored.quarantined_through:
            self._cursor.pass_over(stored.chain)
            self._position = stored.sequence
            return
        if not self._cursor.accept(stored.body, stored.chain):
            raise Failed("CHAIN_BROKEN", f"{stored.sequence} does not continue {APPROVERS_KEY}")
        state = self._state
        for fact in _CODEC.decode(stored.body):
            if isinstance(fact, facts.ApproverAdded | facts.ApproverRevoked):
                state = evolve(state, fact)
        self._state, self._position = state, stored.sequence

    def _on_error(self, error: Exception) -> None:
        """Log an error once until it changes, since it may recur every second."""
        why = error.code if isinstance(error, CodedError) else type(error).__name__
        if why in CODES and CODES[why].retryable:
            log.warning("approvers not followed", extra={"code": why})
        elif why != self.unavailable_reason:
            self.unavailable_reason = why
            log.error("approvers unavailable, no signed answer is valid", exc_info=error)


class ListedApproverKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key of an approver."""

    name: str
    key_id: str
    public_key: str
    added_at_ms: int
    revoked_at_ms: int | None = None


def keys_of(messages: Iterable[StoredMessage]) -> list[ListedApproverKey]:
    """All keys, revoked ones included, in the order in which they were last added. Facts in damaged
    messages do not count."""
    keys: dict[tuple[str, str], ListedApproverKey] = {}
    for fact in _sound_facts(messages):
        match fact:
            case ApproverAdded():
                keys.pop((fact.name, fact.key_id), None)
                keys[fact.name, fact.key_id] = ListedApproverKey(
                    name=fact.name,
                    key_id=fact.key_id,
                    public_key=fact.public_key,
                    added_at_ms=fact.at_ms,
                )
            case ApproverRevoked() if known := keys.get((fact.name, fact.key_id)):
                keys[fact.name, fact.key_id] = msgspec.structs.replace(
                    known, revoked_at_ms=fact.at_ms
                )
    return list(keys.values())


def change_count(messages: Iterable[StoredMessage]) -> int:
    """How often a key was added or revoked."""
    return sum(isinstance(f, ApproverAdded | ApproverRevoked) for f in _sound_facts(messages))


def first_damage(messages: Iterable[StoredMessage]) -> CodedError | None:
    """Why no node trusts the approvers; ``None`` if every message is sound."""
    found = (error for _, error in _examined(messages) if error is not None)
    return next(found, None)


def _sound_facts(messages: Iterable[StoredMessage]) -> Iterator[facts.ApprovalFact]:
    for found, error in _examined(messages):
        if error is None:
            yield from found


def _examined(
    messages: Iterable[StoredMessage],
) -> Iterator[tuple[list[facts.ApprovalFact], CodedError | None]]:
    """The facts of each message, or why it is damaged."""
    cursor = ChainCursor()
    for stored in messages:
        name = f"message {stored.sequence} of {APPROVERS_KEY}"
        if stored.quarantined_through:
            cursor.pass_over(stored.chain)
            continue
        if not cursor.accept(stored.body, stored.chain):
            cursor.pass_over(stored.chain)
            yield [], Failed("CHAIN_BROKEN", f"{name} does not continue its chain")
            continue
        try:
            yield _CODEC.decode(stored.body), None
        except CodedError as error:
            yield [], Failed(error.code, f"{name}: {error.message}")
