"""The check of the journal: every message continues its entity's chain and holds facts of its
family, which can be folded, nodes and approvers have signed what is theirs, and nothing is missing
that an anchor saw.

``JournalCheck`` continues after a damaged message, so that one check names all of them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from rookery.actors import DECIDERS
from rookery.actors.admission import AdmissionDecider, ClaimRegistry, InFlightCounter
from rookery.actors.approvals import ApprovalsDecider, ApprovalSettings
from rookery.actors.kernel import Decider, HistoryFold, codecs_of
from rookery.actors.keys import heads_root
from rookery.bus.journal import (
    QUARANTINE,
    AuditResult,
    AuditScope,
    ChainAudit,
    QuarantinedMessage,
    quarantined_by,
)
from rookery.bus.ports import StoredMessage
from rookery.ops.journal.anchor import Anchor, AnchorCheck
from rookery.ops.journal.approval_check import ApprovalCheck
from rookery.ops.journal.checkpoint_check import CheckpointCheck
from rookery.ops.journal.damage import EXIT_CODES, MessageDamage, damage_words
from rookery.ops.keys import TrustRoots
from rookery.schemas.digest import digest_bytes
from rookery.schemas.envelope import EntityId, Fact
from rookery.schemas.errors import CodedError, Failed

__all__ = ["JournalCheck"]

_LISTED_MAX = 20
_UNPACKED_MAX = 4_096
"""How many states are held as they are: some 100 MB, if all are those of sessions."""


class QuarantinedDamage(MessageDamage, frozen=True, kw_only=True):
    """A damaged message that was set aside."""

    reason: str
    actor: str


class JournalCheck:
    """Checks messages in journal order; ``finish`` ends the check."""

    def __init__(
        self,
        scope: AuditScope = AuditScope.WHOLE,
        *,
        realm: str = "",
        root_key: str = "",
        issuer: str = "",
        require_keys: bool = False,
        anchor: Anchor | None = None,
    ) -> None:
        """Signatures, checkpoints and the anchor are checked in a whole journal only, and if its
        realm is given. ``issuer``: of the realm's credentials; that of an anchor goes first."""
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
        is_whole = scope is AuditScope.WHOLE and bool(realm)
        self._anchor = None if anchor is None else AnchorCheck(anchor)
        on_valid = (lambda _: None) if self._anchor is None else self._anchor.add_checkpoint
        self._issuer = issuer if anchor is None or not anchor.issuer else anchor.issuer
        roots = TrustRoots(realm, root_key, self._issuer)
        self.checkpoints = CheckpointCheck(roots, on_valid) if is_whole else None
        """``None``: what nodes signed cannot be checked."""
        self.approvals = (
            ApprovalCheck(realm, root_key, require_keys=require_keys) if is_whole else None
        )
        self.messages = self.last = 0
        self.quarantined: list[QuarantinedDamage] = []

    @property
    def damaged(self) -> list[MessageDamage]:
        """The damaged messages that are not quarantined, and all other defects, by sequence."""
        found = [damage for damage, _ in self._damaged.values()]
        for check in (self.checkpoints, self.approvals, self._anchor):
            found += [] if check is None else check.defects
        return sorted(found, key=lambda one: one.sequence)

    @property
    def audit(self) -> AuditResult:
        """The counts of the messages whose chain is whole."""
        return self._chains.audit

    @property
    def signed_answers(self) -> int:
        """How many answers of approvers have a valid signature."""
        return 0 if self.approvals is None else self.approvals.signed_answers

    @property
    def exit_code(self) -> int:
        """That of the gravest defect."""
        return max((EXIT_CODES[one.kind] for one in self.damaged), default=0)

    def add(self, stored: StoredMessage) -> None:
        """Check the next message."""
        if self._anchor is not None and self._anchor.is_due(stored.sequence):
            self._anchor.compare(self.last, self.messages, self._chains.heads)
        self.messages, self.last = self.messages + 1, stored.sequence
        error: CodedError | None = self._chains.examine(stored)
        if error is None:
            try:
                self._add_sound(stored, self._decode(stored))
            except CodedError as failure:
                error = failure
        if error is not None:
            self._add_damaged(stored, error)

    def finish(self) -> None:
        """End the check, after the last message."""
        if self.checkpoints is not None:
            self.checkpoints.finish()
        if self._anchor is not None:
            if self._anchor.is_due(sys.maxsize):
                self._anchor.compare(self.last, self.messages, self._chains.heads)
            self._anchor.finish(() if self.checkpoints is None else self.checkpoints.keys)

    def anchor(self, realm: str, now_ms: int) -> Anchor:
        """What is to be known elsewhere about the journal as far as it was checked."""
        assert self.checkpoints is not None
        heads = list(self._chains.heads)
        return Anchor(
            realm=realm,
            at_ms=now_ms,
            sequence=self.last,
            messages=self.messages,
            entities=len(heads),
            root=heads_root(heads),
            issuer=self._issuer,
            keys=tuple(self.checkpoints.keys),
            checkpoints=tuple(self.checkpoints.last_checkpoints),
        )

    def _add_sound(self, stored: StoredMessage, facts: Sequence[Fact]) -> None:
        if self.checkpoints is not None:
            self.checkpoints.add(stored, facts)
        if self.approvals is not None:
            self.approvals.add(stored, facts)
        if stored.entity == QUARANTINE:
            for one in quarantined_by(stored):
                self._set_aside(one)

    def _add_damaged(self, stored: StoredMessage, error: CodedError) -> None:
        if self.checkpoints is not None:
            self.checkpoints.add_damaged(stored.sequence)
        name = f"message {stored.sequence} of {stored.entity}: "
        damage = MessageDamage(
            sequence=stored.sequence,
            entity=str(stored.entity),
            code=error.code,
            message=error.message.removeprefix(name),
        )
        self._damaged[stored.sequence] = damage, digest_bytes(stored.body)

    def error(self) -> Failed | None:
        """The error for the first defect, with the others in its hint."""
        damaged = self.damaged
        if not damaged:
            return None
        first, *others = damaged
        hint = ""
        if others:
            listed = "; ".join(f"{damage_words(one)} ({one.code})" for one in others[:_LISTED_MAX])
            hint = f"and {len(others)} more: {listed}"
        return Failed(first.code, damage_words(first), hint=hint)

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

    def _decode(self, stored: StoredMessage) -> Sequence[Fact]:
        """The facts of a message; raises if they cannot be decoded or folded."""
        entity = stored.entity
        codec = self._codecs.get(entity.family)
        if codec is None:
            raise Failed("FACT_UNKNOWN", f"no family has the name {entity.family}")
        facts: Sequence[Fact] = codec.decode(stored.body)
        if self._can_fold and (decider := self._deciders.get(entity.family)) is not None:
            error = self._fold_of(entity, decider).add_facts(facts)
            if error is not None:
                raise error
        return facts

    def _fold_of(self, entity: EntityId, decider: Decider) -> HistoryFold:
        fold = self._folds.pop(entity, None) or self._packed.pop(entity, None)
        fold = self._folds[entity] = fold or HistoryFold(decider, entity.key)
        if len(self._folds) > _UNPACKED_MAX:
            oldest = next(iter(self._folds))
            self._packed[oldest] = self._folds.pop(oldest)
            self._packed[oldest].pack()
        return fold


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
