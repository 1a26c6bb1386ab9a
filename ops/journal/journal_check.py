"""The check of the journal: every message continues its entity's chain and holds facts of its
family, which can be folded, nodes, approvers and peers have signed what is theirs, and nothing is
missing that an anchor saw.

``JournalCheck`` continues after a damaged message, so that one check names all of them. It checks
chains itself and passes each message on to the check of facts, which for a long journal is another
process: so one pass uses two cores.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import TracebackType
from typing import Final, Protocol, Self

from rookery.actors.keys.checkpoints import heads_root
from rookery.bus.journal_audit import AuditResult, AuditScope, ChainAudit
from rookery.bus.ports import StoredMessage
from rookery.ops.journal.anchor import Anchor, AnchorCheck
from rookery.ops.journal.check_process import CheckProcess
from rookery.ops.journal.damage import EXIT_CODES, MessageDamage
from rookery.ops.journal.facts_check import (
    CheckSettings,
    FactsCheck,
    FactsReport,
    QuarantinedDamage,
    SignedReport,
)
from rookery.schemas.errors import CodedError, Failed

__all__ = ["JournalCheck"]

_LISTED_MAX: Final = 20


class _FactsPart(Protocol):
    """The check of facts, in this process or in another one."""

    def add(self, stored: StoredMessage, error: CodedError | None) -> None: ...

    def finish(self) -> FactsReport: ...

    def close(self) -> None: ...


class JournalCheck:
    """Checks messages in journal order; ``finish`` ends the check, and only then it says what it
    has found."""

    LONG: Final = 50_000
    """From so many messages on a second process gains more than its start costs."""

    def __init__(
        self,
        scope: AuditScope = AuditScope.WHOLE,
        *,
        realm: str = "",
        root_key: str = "",
        issuer: str = "",
        require_keys: bool = False,
        anchor: Anchor | None = None,
        is_long: bool = False,
    ) -> None:
        """Signatures, checkpoints and the anchor are checked in a whole journal only, and if its
        realm is given. ``issuer``: of the realm's credentials; that of an anchor goes first.
        ``is_long``: use a second process, which ``close`` ends."""
        self._chains = ChainAudit(scope)
        self._anchor = None if anchor is None else AnchorCheck(anchor)
        self._issuer = issuer if anchor is None or not anchor.issuer else anchor.issuer
        settings = CheckSettings(
            scope=scope,
            realm=realm,
            root_key=root_key,
            issuer=self._issuer,
            require_keys=require_keys,
            expected=() if anchor is None else tuple(one.digest for one in anchor.checkpoints),
        )
        self._facts: _FactsPart = CheckProcess(settings) if is_long else FactsCheck(settings)
        self._report = FactsReport()
        self.messages = self.last = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        del kind, error, traceback
        self._facts.close()

    def add(self, stored: StoredMessage) -> None:
        """Check the next message."""
        if self._anchor is not None and self._anchor.is_due(stored.sequence):
            self._anchor.compare(self.last, self.messages, self._chains.heads)
        self.messages, self.last = self.messages + 1, stored.sequence
        self._facts.add(stored, self._chains.examine(stored))

    def finish(self) -> None:
        """End the check, after the last message."""
        self._report = self._facts.finish()
        if self._anchor is not None:
            if self._anchor.is_due(sys.maxsize):
                self._anchor.compare(self.last, self.messages, self._chains.heads)
            signed = self._report.signed or SignedReport()
            self._anchor.finish(signed.found, signed.keys)

    @property
    def damaged(self) -> list[MessageDamage]:
        """The damaged messages that are not quarantined, and all other defects, by sequence."""
        found = [*self._report.defects, *(() if self._anchor is None else self._anchor.defects)]
        return sorted(found, key=lambda one: one.sequence)

    @property
    def quarantined(self) -> list[QuarantinedDamage]:
        """The damaged messages that were set aside."""
        return self._report.quarantined

    @property
    def audit(self) -> AuditResult:
        """The counts of the messages whose chain is whole."""
        return self._chains.audit

    @property
    def checkpoints(self) -> SignedReport | None:
        """What nodes have signed; ``None``: it cannot be checked."""
        return self._report.signed

    @property
    def signed_answers(self) -> int:
        """How many answers of approvers have a valid signature."""
        return self._report.signed_answers

    @property
    def signed_envelopes(self) -> int:
        """How many envelopes have the valid signature of a peer that was trusted."""
        return self._report.signed_envelopes

    @property
    def exit_code(self) -> int:
        """That of the gravest defect."""
        return max((EXIT_CODES[one.kind] for one in self.damaged), default=0)

    def anchor(self, realm: str, now_ms: int) -> Anchor:
        """What is to be known elsewhere about the journal as far as it was checked."""
        signed = self._report.signed
        assert signed is not None
        heads = list(self._chains.heads)
        return Anchor(
            realm=realm,
            at_ms=now_ms,
            sequence=self.last,
            messages=self.messages,
            entities=len(heads),
            root=heads_root(heads),
            issuer=self._issuer,
            keys=tuple(signed.keys),
            checkpoints=tuple(signed.last_checkpoints),
        )

    def error(self) -> Failed | None:
        """The error for the first defect, with the others in its hint."""
        damaged = self.damaged
        if not damaged:
            return None
        first, *others = damaged
        hint = ""
        if others:
            listed = "; ".join(f"{one.words} ({one.code})" for one in others[:_LISTED_MAX])
            hint = f"and {len(others)} more: {listed}"
        return Failed(first.code, first.words, hint=hint)

    def quarantine_lines(self) -> Iterator[str]:
        """A line for each quarantined message."""
        for one in self.quarantined:
            actor = f", by {one.actor}" if one.actor else ""
            name = f"message {one.sequence} of {one.entity} ({one.code})"
            yield f"quarantined: {name}{actor}: {one.reason}"
