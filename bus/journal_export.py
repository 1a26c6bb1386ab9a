"""Exports: messages of the journal in a file whose changes are detectable.

The file has JSON lines: a head with the filter, a line a message with its body as exact text, and a
last line with the count. Every line ends with a seal, the SHA3-256 of the seal before it and of the
line's other bytes, so a check finds the place of any changed byte and of any lost, repeated or
moved line. A seal is not a signature: a program that can write the file can compute new seals.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from hashlib import sha3_256
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from rookery.bus.journal_audit import AuditResult, AuditScope, ChainAudit, scope_of
from rookery.bus.ports import Filter, StoredMessage
from rookery.bus.subjects import Subjects
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import Failed
from rookery.schemas.event_index import select_fact
from rookery.schemas.events import EventFilter

__all__ = ["ExportReader", "JournalExport", "seal_line", "verify_lines"]

_FORMAT = 1
_SEALED = re.compile(rb'(?P<text>\{.*),"seal":"(?P<seal>[0-9a-f]{64})"\}\n\Z', re.DOTALL)
_CLAIMED_SEQUENCE = re.compile(rb'\{"sequence":([0-9]{1,19}),')
_COUNT = b'{"count":'

T = TypeVar("T")


class _ExportHead(msgspec.Struct, forbid_unknown_fields=True):
    rookery_export: int
    realm: str
    family: str | None
    key: str | None
    run: str | None
    after: int
    filter: EventFilter | UnsetType = UNSET
    """Selects every fact of the messages; others are left out."""


class _ExportLine(msgspec.Struct, forbid_unknown_fields=True):
    sequence: int
    subject: str
    id: str
    stored_at_ms: int
    chain: str
    body: str
    body_base64: bytes | UnsetType = UNSET
    """The body of a message that is not text; no node writes such a message."""


class _ExportEnd(msgspec.Struct, forbid_unknown_fields=True):
    count: int


class JournalExport:
    """Encodes an export: the head, a line for each message of a scan, the end."""

    def __init__(
        self,
        subjects: Subjects,
        where: Filter,
        after: int = 0,
        only: EventFilter | UnsetType = UNSET,
    ) -> None:
        """``only``: leave out each message with a fact that it does not select."""
        self._subjects, self._where, self._after = subjects, where, after
        self._only = only
        self._seal = ""
        self._count = 0

    def head(self) -> bytes:
        where = self._where
        return self._sealed(
            _ExportHead(
                _FORMAT,
                self._subjects.realm,
                where.family,
                where.key,
                where.run,
                self._after,
                self._only,
            )
        )

    def selects(self, stored: StoredMessage) -> bool:
        """Whether the message belongs into the export; one that does not decode has no class."""
        if self._only is UNSET:
            return True
        try:
            facts = msgspec.json.decode(stored.body, type=list[dict[str, Any]])
        except msgspec.MsgspecError:
            return False
        key = stored.entity.key
        return all(select_fact(self._only, fact, key) is not None for fact in facts)

    def line(self, stored: StoredMessage) -> bytes:
        raw: bytes | UnsetType = UNSET
        try:
            body = stored.body.decode()
        except UnicodeDecodeError:
            body, raw = "", stored.body
        self._count += 1
        return self._sealed(
            _ExportLine(
                stored.sequence,
                self._subjects.fact(stored.entity),
                stored.message_id,
                stored.stored_at_ms,
                stored.chain,
                body,
                raw,
            )
        )

    def end(self) -> bytes:
        return self._sealed(_ExportEnd(self._count))

    def _sealed(self, record: msgspec.Struct) -> bytes:
        self._seal, line = seal_line(self._seal, record)
        return line


def seal_line(previous: str, record: object) -> tuple[str, bytes]:
    """A record, which encodes as a JSON object, as a line; ``previous``: the seal of the line
    before. The seal of this line, and the line."""
    text = encode_json(record)[:-1]
    seal = _seal(previous, text)
    return seal, b'%b,"seal":"%b"}\n' % (text, seal.encode())


def verify_lines(lines: Iterable[bytes]) -> AuditResult:
    """Check the seals and the chains of an export.

    ``Failed`` EXPORT_CORRUPT if the file was changed, CHAIN_BROKEN if the journal was damaged
    before the export.
    """
    export = ExportReader(lines)
    chains = ChainAudit(export.scope)
    for stored in export:
        chains.add(stored)
    return chains.audit


class ExportReader:
    """The messages of an export; ``Failed`` EXPORT_CORRUPT at the first changed line."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        """``lines`` include their line ends, as a binary file yields them."""
        self._lines = iter(lines)
        self._seal = ""
        self._number = 0
        self._sequence = 0
        head = self._decoded(self._next_text(), _ExportHead)
        if head.rookery_export != _FORMAT:
            raise self._corrupt(f"has format {head.rookery_export}, this version reads {_FORMAT}")
        self.realm = head.realm
        self._subjects = Subjects(head.realm)
        self.scope = scope_of(Filter(head.family, head.key, head.run), head.after)
        if head.filter is not UNSET:
            self.scope = AuditScope.PARTS

    def __iter__(self) -> Iterator[StoredMessage]:
        count = 0
        while not (text := self._next_text()).startswith(_COUNT):
            line = self._decoded(text, _ExportLine)
            yield self._stored(line)
            self._sequence = line.sequence
            count += 1
        if (end := self._decoded(text, _ExportEnd)).count != count:
            raise self._corrupt(f"counts {end.count} messages, not {count}")
        for _ in self._lines:
            self._number += 1
            raise self._corrupt("follows the last line of the export")

    def _next_text(self) -> bytes:
        """The next line without its seal."""
        raw = next(self._lines, None)
        self._number += 1
        if raw is None:
            raise self._corrupt("is missing: the export is truncated")
        sealed = _SEALED.match(raw)
        if sealed is None or _seal(self._seal, sealed["text"]) != sealed["seal"].decode():
            claimed = _CLAIMED_SEQUENCE.match(raw)
            name = f"; it claims to be message {int(claimed[1])}" if claimed else ""
            raise self._corrupt(f"was changed after the export{name}")
        self._seal = sealed["seal"].decode()
        return sealed["text"] + b"}"

    def _stored(self, line: _ExportLine) -> StoredMessage:
        return StoredMessage(
            line.sequence,
            self._subjects.entity(line.subject),
            line.id,
            line.chain,
            line.body.encode() if line.body_base64 is UNSET else line.body_base64,
            line.stored_at_ms,
        )

    def _decoded(self, text: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(text, type=kind)
        except msgspec.DecodeError as error:
            raise self._corrupt(f"has a valid seal but is not an export line: {error}") from None

    def _corrupt(self, what: str) -> Failed:
        place = f"which follows message {self._sequence}" if self._sequence else "near the start"
        return Failed("EXPORT_CORRUPT", f"line {self._number}, {place}, {what}")


def _seal(previous: str, text: bytes) -> str:
    return sha3_256(previous.encode() + text).hexdigest()
