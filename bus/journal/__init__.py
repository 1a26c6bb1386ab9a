"""The journal on JetStream: appending, reading, following, auditing and exporting."""

from rookery.bus.journal.audit import AuditResult, AuditScope, ChainAudit
from rookery.bus.journal.export import JournalExport, verify_lines
from rookery.bus.journal.journal import JetStreamFeed, JetStreamJournal

__all__ = [
    "AuditResult",
    "AuditScope",
    "ChainAudit",
    "JetStreamFeed",
    "JetStreamJournal",
    "JournalExport",
    "verify_lines",
]
