"""The journal on JetStream: appending, reading, following, auditing and exporting."""

from rookery.bus.journal.audit import AuditResult, AuditScope, ChainAudit
from rookery.bus.journal.export import ExportReader, JournalExport, seal_line, verify_lines
from rookery.bus.journal.journal import JetStreamFeed, JetStreamJournal
from rookery.bus.journal.quarantine import (
    QUARANTINE,
    Quarantine,
    QuarantinedMessage,
    quarantined_by,
)

__all__ = [
    "QUARANTINE",
    "AuditResult",
    "AuditScope",
    "ChainAudit",
    "ExportReader",
    "JetStreamFeed",
    "JetStreamJournal",
    "JournalExport",
    "Quarantine",
    "QuarantinedMessage",
    "quarantined_by",
    "seal_line",
    "verify_lines",
]
