"""Anchors: a small file that an auditor keeps elsewhere, and that the journal must still contain.

An anchor has the end of the journal, the root over the heads of all entities there, the nodes' keys
and their last checkpoints. Whatever is done to the journal and to every copy of it, an earlier
message can then be removed or changed only where this file shows it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

import msgspec

from rookery.actors.keys.checkpoints import Head, heads_root
from rookery.ops.journal.checkpoint_check import SignedCheckpoint
from rookery.ops.journal.damage import DefectKind, MessageDamage
from rookery.ops.journal.node_log import SeenKey
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import Refused

__all__ = ["Anchor", "AnchorCheck"]

_FORMAT = 1


class Anchor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of the file."""

    rookery_anchor: int = _FORMAT
    realm: str
    at_ms: int
    sequence: int
    """Of the last message."""
    messages: int
    entities: int
    root: str
    """Over the heads of all entities."""
    issuer: str = ""
    """Public key of the issuer of the realm's credentials, to check operators' vouchers."""
    keys: tuple[SeenKey, ...]
    checkpoints: tuple[SignedCheckpoint, ...]

    @classmethod
    def read(cls, body: bytes, realm: str) -> Anchor:
        """The anchor in a file; ``Refused`` ANCHOR_INVALID if it is none of this realm."""
        try:
            anchor = msgspec.json.decode(body, type=cls)
        except msgspec.MsgspecError as error:
            raise Refused(
                "ANCHOR_INVALID", f"not an anchor: {error}", hint="rookery journal anchor FILE"
            ) from None
        if anchor.rookery_anchor != _FORMAT or anchor.realm != realm:
            raise Refused(
                "ANCHOR_INVALID",
                f"the anchor is of realm {anchor.realm} and format {anchor.rookery_anchor}",
            )
        return anchor

    def encode(self) -> bytes:
        return msgspec.json.format(encode_json(self), indent=2) + b"\n"


class AnchorCheck:
    """Compares a journal with an anchor."""

    def __init__(self, anchor: Anchor) -> None:
        self._anchor = anchor
        self._is_compared = False
        self.defects: list[MessageDamage] = []

    def is_due(self, sequence: int) -> bool:
        """Whether the message with this sequence is the first one after the anchor."""
        return not self._is_compared and sequence > self._anchor.sequence

    def compare(self, last: int, messages: int, heads: Iterable[Head]) -> None:
        """Compare what was read up to the anchor: the last sequence, how many messages, and the
        heads of all entities."""
        self._is_compared, anchor = True, self._anchor
        known = list(heads)
        if last < anchor.sequence:
            text = f"the journal ends here, and the anchor has seen message {anchor.sequence}"
            self._report(last, f"{text}: its newest messages were cut off")
        elif messages != anchor.messages:
            text = f"{messages} messages up to here, and the anchor has seen {anchor.messages}"
            self._report(last, f"{text}: messages were removed or added")
        elif len(known) != anchor.entities:
            text = f"{len(known)} entities up to here, and the anchor has seen {anchor.entities}"
            self._report(last, f"{text}: entities were removed or added")
        elif heads_root(known) != anchor.root:
            self._report(last, "messages up to here were changed since the anchor was written")

    def finish(self, found: Container[str], keys: Iterable[SeenKey]) -> None:
        """Report what the anchor has and the journal lacks; ``found``: digests of its valid
        checkpoints."""
        for one in self._anchor.checkpoints:
            if one.digest not in found:
                text = f"the checkpoint of {one.node} that the anchor has is missing"
                self._report(one.sequence, text)
        present = {key.public_key for key in keys}
        for key in self._anchor.keys:
            if key.public_key not in present:
                text = f"the key {key.public_key[:16]} that the anchor has is missing"
                self._report(key.sequence, text)

    def _report(self, sequence: int, text: str) -> None:
        self.defects.append(
            MessageDamage(
                sequence=sequence,
                entity="",
                code="HISTORY_CHANGED",
                message=text,
                kind=DefectKind.HISTORY,
            )
        )
