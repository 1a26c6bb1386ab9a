"""The journal on JetStream: appending, reading, following, auditing and exporting."""

from rookery.bus.journal.audit import (
    QUARANTINE,
    AuditResult,
    AuditScope,
    ChainAudit,
    Quarantine,
    QuarantinedMessage,
    quarantined_by,
)
from rookery.bus.journal.export import ExportReader, JournalExport, seal_line
from rookery.bus.journal.journal import JetStreamFeed, JetStreamJournal

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
]
