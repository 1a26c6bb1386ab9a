"""Approvers: the rules for adding and revoking their keys, and which of these facts count. Pure.

The first approver of a realm needs no signature, unless the realm has a root key. Every later
change is signed by an approver's key or the root key. The signature covers the number of the
change, so it is valid once. The last approver can be removed only with a root key, so the next
change can always be signed.

The facts carry the signature, and every reader applies them to an ``ApproverLine``: every holder
of a node's credential can write such a fact, and only an approver or the holder of the root key
can sign one. A fact that the line does not accept is forged: readers skip it and report it. A
reader without a root key accepts the first change as it is, and with it the approver or the root
key that it names. Facts of versions that stored no signature precede the first one with a number;
without a root key they count, as unsigned.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from rookery.actors.approvals.state import (
    APPROVERS_KEY,
    MESSAGE_MAX,
    ApprovalSettings,
    Approver,
    ApproverChange,
    SessionApprovals,
)
from rookery.actors.keys.approver_signatures import verify_change
from rookery.actors.keys.ed25519 import key_id_of, read_public_key
from rookery.schemas.commands import ChangeApprover
from rookery.schemas.envelope import Fact
from rookery.schemas.errors import Refused
from rookery.schemas.facts import approval as facts
from rookery.schemas.replies import ApproverReceipt

__all__ = [
    "ApproverLine",
    "approver_receipt",
    "change_approver",
    "check_change",
]

_KEY: Final = re.compile(r"[0-9a-f]{64}")
_NAME: Final = re.compile(r"(?!agent\.)[A-Za-z0-9_.@+-]{1,64}")


class ApproverLine:
    """The approvers of a realm after the changes so far."""

    def __init__(
        self, realm: str, root_key: str = "", changes: Iterable[ApproverChange] = ()
    ) -> None:
        self._realm, self.root_key = realm, root_key
        """The configured root key, else the one that signed the first change."""
        self._is_numbered = False
        """Whether a change had a number, so that every later one has a signature."""
        self._last = ("", "")
        """Name and signature of the last revocation, which may have several facts."""
        self.approvers: dict[str, Approver] = {}
        """By key id."""
        self.former: dict[str, str] = {}
        """The public keys of revoked approvers, by their ids."""
        self.count = 0
        """The number of changes that count: the next one has the number after it."""
        for change in changes:
            self.add(change)

    @property
    def public_keys(self) -> dict[str, str]:
        """Of the approvers, by their ids."""
        return {key_id: approver.public_key for key_id, approver in self.approvers.items()}

    def key_of(self, key_id: str) -> str:
        """The public key that may sign changes under this id; empty if none may."""
        if self.root_key and key_id == key_id_of(self.root_key):
            return self.root_key
        approver = self.approvers.get(key_id)
        return "" if approver is None else approver.public_key

    def keys_of(self, name: str) -> list[str]:
        """The ids of an approver's keys."""
        return sorted(one.key_id for one in self.approvers.values() if one.name == name)

    def add(self, fact: ApproverChange) -> str:
        """Apply the next fact if it counts; else return why it is forged."""
        fault = self._fault(fact)
        if fault:
            return fault
        self.count += 1
        self._is_numbered |= bool(fact.change)
        if isinstance(fact, facts.ApproverAdded):
            self._last = ("", "")
            self.former.pop(fact.key_id, None)
            self.approvers[fact.key_id] = Approver(
                name=fact.name,
                key_id=fact.key_id,
                public_key=fact.public_key,
                signed_by=fact.signed_by if fact.signature else "",
            )
        else:
            self._last = (fact.name, fact.signature)
            if (revoked := self.approvers.pop(fact.key_id, None)) is not None:
                self.former[fact.key_id] = revoked.public_key
        return ""

    def _fault(self, fact: ApproverChange) -> str:
        if isinstance(fact, facts.ApproverAdded):
            if not _is_key_of(fact.public_key, fact.key_id):
                return "its key does not have its id"
            known = self.approvers.get(fact.key_id)
            if known is not None and known.name != fact.name:
                return f"its key belongs to {known.name}"
        if fact.signature:
            return self._signature_fault(fact)
        if self.root_key:
            return "it has no signature, and the realm has a root key"
        if self._is_numbered or (fact.change and self.approvers):
            return "it has no signature"
        return ""

    def _signature_fault(self, fact: ApproverChange) -> str:
        if isinstance(fact, facts.ApproverRevoked):
            known = self.approvers.get(fact.key_id)
            if known is None or known.name != fact.name:
                return f"{fact.name} has no such key"
            if self._last == (fact.name, fact.signature):
                return ""
        if fact.change != self.count + 1:
            return f"its signature is for change {fact.change}, and it is change {self.count + 1}"
        signer = self.key_of(fact.signed_by)
        is_first = not (self.root_key or self.approvers or self._is_numbered)
        if is_first and _is_key_of(fact.root_key, fact.signed_by):
            signer = fact.root_key
        if not signer:
            return f"{fact.signed_by[:40]!r}, which signed it, is not the key of an approver"
        change = _signed_change(fact)
        if change is None or not verify_change(self._realm, change, signer):
            return "its signature does not match"
        if is_first:
            self.root_key = signer
        return ""


def _signed_change(fact: ApproverChange) -> ChangeApprover | None:
    """The change as it was signed; ``None`` if what was signed adds another key."""
    text = fact.public_key if isinstance(fact, facts.ApproverAdded) else ""
    if fact.signed_key:
        if not _is_key_text(fact.signed_key, text):
            return None
        text = fact.signed_key
    return ChangeApprover(
        name=fact.name,
        public_key=text,
        change=fact.change,
        key_id=fact.signed_by,
        signature=fact.signature,
    )


def _is_key_of(public_key: str, key_id: str) -> bool:
    return bool(_KEY.fullmatch(public_key)) and key_id_of(public_key) == key_id


def _is_key_text(text: str, public_key: str) -> bool:
    try:
        return read_public_key(text) == public_key
    except Refused:
        return False


# --- changes --------------------------------------------------------------------------------------


def change_approver(
    state: SessionApprovals,
    key: str,
    change: ChangeApprover,
    settings: ApprovalSettings,
    now_ms: int,
) -> Sequence[Fact]:
    """Add a key of the approver, or revoke all of them, or record the refusal."""
    line = approver_line(state, settings)
    changes = _changes(line, key, change)
    try:
        is_signed = _authorize(line, change, settings, changes)
    except Refused as refusal:
        if state.refusals.is_exceeded(now_ms):
            raise
        refused = facts.ApproverRefused(
            name=change.name,
            code=refusal.code,
            message=refusal.message[:MESSAGE_MAX],
            key_id=change.key_id[:40],
        )
        return (refused,)
    return [_with_proof(line, fact, change, is_signed=is_signed) for fact in changes]


def check_change(
    state: SessionApprovals, key: str, change: ChangeApprover, settings: ApprovalSettings
) -> None:
    """Refuse a repeated change that is not authorized."""
    line = approver_line(state, settings)
    _authorize(line, change, settings, _changes(line, key, change))


def approver_receipt(
    state: SessionApprovals, name: str, settings: ApprovalSettings
) -> ApproverReceipt:
    line = approver_line(state, settings)
    return ApproverReceipt(name=name, key_ids=tuple(line.keys_of(name)), changes=line.count)


def approver_line(state: SessionApprovals, settings: ApprovalSettings) -> ApproverLine:
    """The approvers after all changes that count."""
    return ApproverLine(settings.realm, settings.root_key, state.changes)


def _changes(line: ApproverLine, key: str, change: ChangeApprover) -> Sequence[ApproverChange]:
    if key != APPROVERS_KEY:
        raise Refused("INVALID_ARGUMENT", f"the key of approvers is {APPROVERS_KEY}")
    if not _NAME.fullmatch(change.name):
        raise Refused(
            "INVALID_ARGUMENT",
            f"{change.name[:80]!r} is not a valid name of an approver",
            hint="use 1 to 64 letters, digits or _.@+- and no name of an agent",
        )
    if change.public_key:
        return _add_key(line, change)
    keys = line.keys_of(change.name)
    if not keys:
        raise Refused("APPROVER_UNKNOWN", f"{change.name} has no key")
    return [facts.ApproverRevoked(name=change.name, key_id=key_id) for key_id in keys]


def _add_key(line: ApproverLine, change: ChangeApprover) -> Sequence[ApproverChange]:
    """The new key; also one that is known and unsigned, if this change is signed."""
    public_key = read_public_key(change.public_key)
    key_id = key_id_of(public_key)
    known = line.approvers.get(key_id)
    if known is not None and known.name != change.name:
        raise Refused("GUARD_REJECTED", f"key {key_id} belongs to {known.name}")
    if known is not None and (known.signed_by or not change.signature):
        return ()
    return [facts.ApproverAdded(name=change.name, key_id=key_id, public_key=public_key)]


def _with_proof(
    line: ApproverLine, fact: ApproverChange, change: ChangeApprover, *, is_signed: bool
) -> ApproverChange:
    """The fact with its number and the signature that readers check."""
    number = line.count + 1
    if not is_signed:
        return replace(fact, change=number)
    root_key = line.root_key if change.key_id not in line.approvers else ""
    is_same = not isinstance(fact, facts.ApproverAdded) or change.public_key == fact.public_key
    return replace(
        fact,
        change=number,
        signed_by=change.key_id,
        signed_key="" if is_same else change.public_key,
        root_key=root_key,
        signature=change.signature,
    )


def _authorize(
    line: ApproverLine,
    change: ChangeApprover,
    settings: ApprovalSettings,
    changes: Sequence[Fact],
) -> bool:
    """Refuse an unsigned or wrongly signed change; whether its signature is verified. A change
    without effect needs no signature; neither does the first approver."""
    if not changes or not (line.approvers or line.root_key):
        return False
    if not change.signature:
        raise Refused("SIGNATURE_REQUIRED", "an approver must sign this change: --as KEYFILE")
    public_key = line.key_of(change.key_id)
    if not public_key:
        text = f"{change.key_id[:40]!r} is not the key of an approver"
        raise Refused("APPROVER_UNKNOWN", text, hint="rookery approvers list")
    if not verify_change(settings.realm, change, public_key):
        raise Refused("SIGNATURE_INVALID", "the signature does not match the change and the key")
    if change.change != line.count + 1:
        text = f"the signature is for change {change.change}, the next change is {line.count + 1}"
        raise Refused("GUARD_REJECTED", text)
    if not (line.root_key or change.public_key) and len(changes) == len(line.approvers):
        raise Refused(
            "GUARD_REJECTED", "the last approver cannot be revoked: add another one first"
        )
    return True
