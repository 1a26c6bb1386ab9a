"""The check of the journal: every message continues its entity's chain and holds facts of its
family.

``JournalCheck`` continues after a damaged message, so that one check names all of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from rookery.actors import DECIDERS
from rookery.bus.journal import (
    QUARANTINE,
    AuditResult,
    AuditScope,
    ChainAudit,
    QuarantinedMessage,
    quarantined_by,
)
from rookery.bus.ports import StoredMessage
from rookery.schemas.codec import FactCodec
from rookery.schemas.digest import digest_bytes
from rookery.schemas.envelope import Fact
from rookery.schemas.errors import CodedError, Failed

__all__ = ["JournalCheck", "MessageDamage"]

_LISTED_MAX = 20


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
        self._codecs = _codecs()
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
        error = self._chains.examine(stored) or self._decode_error(stored)
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

    def _decode_error(self, stored: StoredMessage) -> CodedError | None:
        codec = self._codecs.get(stored.entity.family)
        if codec is None:
            return Failed("FACT_UNKNOWN", f"no family has the name {stored.entity.family}")
        try:
            codec.decode(stored.body)
        except CodedError as error:
            return error
        return None


def _words(damage: MessageDamage) -> str:
    return f"message {damage.sequence} of {damage.entity}: {damage.message}"


def _codecs() -> dict[str, FactCodec[Fact]]:
    """By family, what decodes its messages."""
    codecs: dict[str, FactCodec[Fact]] = {}
    for family, entry in DECIDERS.items():
        decider = entry.load()
        codecs |= {**decider.older_codecs, family: decider.codec}
    return codecs
