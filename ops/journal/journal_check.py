"""The check of the journal: every message continues its entity's chain and holds facts of its
family, and those of each entity can be folded.

``JournalCheck`` continues after a damaged message, so that one check names all of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from rookery.actors import DECIDERS
from rookery.actors.admission import AdmissionDecider, ClaimRegistry, InFlightCounter
from rookery.actors.approvals import ApprovalsDecider, ApprovalSettings
from rookery.actors.kernel import Decider, HistoryFold, codecs_of
from rookery.bus.journal import (
    QUARANTINE,
    AuditResult,
    AuditScope,
    ChainAudit,
    QuarantinedMessage,
    quarantined_by,
)
from rookery.bus.ports import StoredMessage
from rookery.schemas.digest import digest_bytes
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import CodedError, Failed

__all__ = ["JournalCheck", "MessageDamage"]

_LISTED_MAX = 20
_UNPACKED_MAX = 4_096
"""How many states are held as they are: some 100 MB, if all are those of sessions."""


class MessageDamage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that readers cannot use."""

    sequence: int
    entity: str
    code: str
    message: str


class QuarantinedDamage(MessageDamage, frozen=True, kw_only=True):
    """A damaged message that was set aside."""

    reason: str
    actor: str


class JournalCheck:
    """Checks messages in journal order."""

    def __init__(self, scope: AuditScope = AuditScope.WHOLE) -> None:
        self._chains = ChainAudit(scope)
        self._deciders = {one.family: one for one in _deciders()}
        self._codecs = codecs_of(list(self._deciders.values()))
        self._can_fold = scope is AuditScope.WHOLE
        """Whether every message of an entity is seen, from the first."""
        self._folds: dict[EntityId, HistoryFold] = {}
        """Those of the entities that had messages last, the oldest first."""
        self._packed: dict[EntityId, HistoryFold] = {}
        self._damaged: dict[int, tuple[MessageDamage, str]] = {}
        """By sequence, with the digest of the body."""
        self.quarantined: list[QuarantinedDamage] = []

    @property
    def damaged(self) -> list[MessageDamage]:
        """The damaged messages that are not quarantined."""
        return [damage for damage, _ in self._damaged.values()]

    @property
    def audit(self) -> AuditResult:
        """The counts of the messages whose chain is whole."""
        return self._chains.audit

    def add(self, stored: StoredMessage) -> None:
        """Check the next message."""
        error = self._chains.examine(stored) or self._facts_error(stored)
        if error is None:
            if stored.entity == QUARANTINE:
                for one in quarantined_by(stored):
                    self._set_aside(one)
            return
        name = f"message {stored.sequence} of {stored.entity}: "
        damage = MessageDamage(
            sequence=stored.sequence,
            entity=str(stored.entity),
            code=error.code,
            message=error.message.removeprefix(name),
        )
        self._damaged[stored.sequence] = damage, digest_bytes(stored.body)

    def error(self) -> Failed | None:
        """The error for the first damaged message, with the others in its hint."""
        if not self.damaged:
            return None
        first, *others = self.damaged
        hint = ""
        if others:
            listed = "; ".join(f"{_words(one)} ({one.code})" for one in others[:_LISTED_MAX])
            hint = f"and {len(others)} more: {listed}"
        return Failed(first.code, _words(first), hint=hint)

    def quarantine_lines(self) -> Iterator[str]:
        """A line for each quarantined message."""
        for one in self.quarantined:
            actor = f", by {one.actor}" if one.actor else ""
            name = f"message {one.sequence} of {one.entity} ({one.code})"
            yield f"quarantined: {name}{actor}: {one.reason}"

    def _set_aside(self, one: QuarantinedMessage) -> None:
        damage, digest = self._damaged.get(one.sequence, (None, ""))
        if damage is None or digest != one.digest or damage.entity != str(one.entity):
            return
        del self._damaged[one.sequence]
        self.quarantined.append(
            QuarantinedDamage(
                sequence=one.sequence,
                entity=damage.entity,
                code=damage.code,
                message=damage.message,
                reason=one.reason,
                actor=one.actor,
            )
        )

    def _facts_error(self, stored: StoredMessage) -> CodedError | None:
        entity = stored.entity
        if self._can_fold and (decider := self._deciders.get(entity.family)) is not None:
            return self._fold_of(entity, decider).add(stored.body)
        codec = self._codecs.get(entity.family)
        if codec is None:
            return Failed("FACT_UNKNOWN", f"no family has the name {entity.family}")
        try:
            codec.decode(stored.body)
        except CodedError as error:
            return error
        return None

    def _fold_of(self, entity: EntityId, decider: Decider) -> HistoryFold:
        fold = self._folds.pop(entity, None) or self._packed.pop(entity, None)
        fold = self._folds[entity] = fold or HistoryFold(decider, entity.key)
        if len(self._folds) > _UNPACKED_MAX:
            oldest = next(iter(self._folds))
            self._packed[oldest] = self._folds.pop(oldest)
            self._packed[oldest].pack()
        return fold


def _words(damage: MessageDamage) -> str:
    return f"message {damage.sequence} of {damage.entity}: {damage.message}"


def _deciders() -> Iterator[Decider]:
    """One of each family, which only folds."""
    for family, entry in DECIDERS.items():
        match family:
            case "session":
                yield AdmissionDecider(
                    queued_max=0,
                    in_flight_max=0,
                    realm_load=InFlightCounter(),
                    claims=ClaimRegistry(),
                )
            case "approval":
                yield ApprovalsDecider(ApprovalSettings())
            case _:
                yield entry.load()()
