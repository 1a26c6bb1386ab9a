"""The check of facts: they decode, they can be folded, and their signatures are valid.

It gets every message of the journal in order, each with the defect of its chain, if it has one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from rookery.actors import DECIDERS
from rookery.actors.admission import AdmissionDecider, InFlightCounter
from rookery.actors.approvals import ApprovalsDecider
from rookery.actors.approvals.state import ApprovalSettings
from rookery.actors.histories import HistoryFold
from rookery.actors.kernel import Decider
from rookery.bus.journal_audit import QUARANTINE, AuditScope, QuarantinedMessage, quarantined_by
from rookery.bus.ports import StoredMessage
from rookery.ops.journal.approval_check import ApprovalCheck
from rookery.ops.journal.checkpoint_check import CheckpointCheck, SignedCheckpoint, Unproven
from rookery.ops.journal.damage import MessageDamage
from rookery.ops.journal.node_log import SeenKey
from rookery.ops.journal.peer_check import PeerCheck
from rookery.ops.keys import TrustRoots
from rookery.schemas.digest import digest_bytes
from rookery.schemas.envelope import EntityId, Fact
from rookery.schemas.errors import CodedError, Failed

__all__ = ["CheckSettings", "FactsCheck", "FactsReport", "QuarantinedDamage", "SignedReport"]

_UNPACKED_MAX: Final = 1_000_000
"""The states of so many messages are held as they are, in some 400 MB; to pack and unpack one takes
longer than to check ten messages. States that had no message for longest are packed first."""


class CheckSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a verifier knows before it reads the journal."""

    scope: AuditScope
    realm: str
    root_key: str
    issuer: str
    require_keys: bool
    """The realm requires keys now, whatever a node says that starts."""
    expected: tuple[str, ...] = ()
    """Digests of checkpoints that an anchor has seen."""


class QuarantinedDamage(MessageDamage, frozen=True, kw_only=True):
    """A damaged message that was set aside."""

    reason: str
    actor: str


class SignedReport(msgspec.Struct, kw_only=True):
    """What nodes have signed."""

    proven: int = 0
    checkpoints: int = 0
    keys: list[SeenKey] = []
    unproven: list[Unproven] = []
    last_checkpoints: list[SignedCheckpoint] = []
    found: list[str] = []
    """Those of the expected digests that belong to valid checkpoints."""


class FactsReport(msgspec.Struct, kw_only=True):
    """What the check has found."""

    defects: list[MessageDamage] = []
    quarantined: list[QuarantinedDamage] = []
    signed: SignedReport | None = None
    signed_answers: int = 0
    signed_envelopes: int = 0


class FactsCheck:
    """Checks messages in journal order; ``finish`` ends the check."""

    def __init__(self, settings: CheckSettings) -> None:
        self._deciders = {one.family: one for one in _deciders()}
        codecs = Decider.codecs_of(list(self._deciders.values()))
        self._decoders = {family: codec.decode for family, codec in codecs.items()}
        self._can_fold = settings.scope is AuditScope.WHOLE
        """Whether every message of an entity is seen, from the first."""
        self._folds: dict[EntityId, HistoryFold] = {}
        """Those of the entities that had messages last, the oldest first."""
        self._unpacked = 0
        """How many messages these have folded."""
        self._packed: dict[EntityId, HistoryFold] = {}
        self._damaged: dict[int, tuple[MessageDamage, str]] = {}
        """By sequence, with the digest of the body."""
        self._quarantined: list[QuarantinedDamage] = []
        self._missing, self._found = set(settings.expected), list[str]()
        realm, root_key = settings.realm, settings.root_key
        self._checkpoints: CheckpointCheck | None = None
        self._approvals: ApprovalCheck | None = None
        self._peers: PeerCheck | None = None
        if self._can_fold and realm:
            roots = TrustRoots(realm, root_key, settings.issuer)
            self._checkpoints = CheckpointCheck(roots, self._on_valid)
            approvals = ApprovalCheck(realm, root_key, require_keys=settings.require_keys)
            self._approvals = approvals
            self._peers = PeerCheck(realm, approvals.signers)

    def add(self, stored: StoredMessage, error: CodedError | None) -> None:
        """Check the next message; ``error``: that of its chain."""
        if error is None:
            try:
                self._add_sound(stored, self._decode(stored))
            except CodedError as failure:
                error = failure
        if error is not None:
            self._add_damaged(stored, error)

    def finish(self) -> FactsReport:
        """End the check, after the last message."""
        report = FactsReport(
            defects=[damage for damage, _ in self._damaged.values()],
            quarantined=self._quarantined,
        )
        if (check := self._checkpoints) is not None:
            check.finish()
            report.defects += check.defects
            report.signed = SignedReport(
                proven=check.proven,
                checkpoints=check.checkpoints,
                keys=check.keys,
                unproven=check.unproven,
                last_checkpoints=check.last_checkpoints,
                found=self._found,
            )
        if self._approvals is not None:
            report.defects += self._approvals.defects
            report.signed_answers = self._approvals.signed_answers
        if self._peers is not None:
            report.defects += self._peers.defects
            report.signed_envelopes = self._peers.signed_envelopes
        return report

    def close(self) -> None:
        """There is nothing to close."""

    def _on_valid(self, digest: str) -> None:
        if digest in self._missing:
            self._found.append(digest)

    def _add_sound(self, stored: StoredMessage, facts: Sequence[Fact]) -> None:
        if self._checkpoints is not None:
            self._checkpoints.add(stored, facts)
        if self._approvals is not None:
            self._approvals.add(stored, facts)
        if self._peers is not None:
            self._peers.add(stored, facts)
        if stored.entity == QUARANTINE:
            for one in quarantined_by(stored):
                self._set_aside(one)

    def _add_damaged(self, stored: StoredMessage, error: CodedError) -> None:
        if self._checkpoints is not None:
            self._checkpoints.add_damaged(stored.sequence)
        name = f"message {stored.sequence} of {stored.entity}: "
        damage = MessageDamage(
            sequence=stored.sequence,
            entity=str(stored.entity),
            code=error.code,
            message=error.message.removeprefix(name),
        )
        self._damaged[stored.sequence] = damage, digest_bytes(stored.body)

    def _set_aside(self, one: QuarantinedMessage) -> None:
        damage, digest = self._damaged.get(one.sequence, (None, ""))
        if damage is None or digest != one.digest or damage.entity != str(one.entity):
            return
        del self._damaged[one.sequence]
        self._quarantined.append(
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
        decode = self._decoders.get(entity.family)
        if decode is None:
            raise Failed("FACT_UNKNOWN", f"no family has the name {entity.family}")
        facts: Sequence[Fact] = decode(stored.body)
        if self._can_fold and (decider := self._deciders.get(entity.family)) is not None:
            error = self._fold_of(entity, decider).add_facts(facts)
            if error is not None:
                raise error
            self._unpacked += 1
            if self._unpacked > _UNPACKED_MAX:
                self._pack()
        return facts

    def _fold_of(self, entity: EntityId, decider: Decider) -> HistoryFold:
        fold = self._folds.pop(entity, None)
        if fold is None:
            fold = self._packed.pop(entity, None) or HistoryFold(decider, entity.key)
            self._unpacked += fold.messages
        self._folds[entity] = fold
        return fold

    def _pack(self) -> None:
        while self._unpacked > _UNPACKED_MAX:
            oldest = next(iter(self._folds))
            fold = self._packed[oldest] = self._folds.pop(oldest)
            self._unpacked -= fold.messages
            fold.pack()


def _deciders() -> Iterator[Decider]:
    """One of each family, which only folds."""
    for family, entry in DECIDERS.items():
        match family:
            case "session":
                yield AdmissionDecider(
                    queued_max=0,
                    in_flight_max=0,
                    realm_load=InFlightCounter(),
                )
            case "approval":
                yield ApprovalsDecider(ApprovalSettings())
            case _:
                yield entry.load()()
