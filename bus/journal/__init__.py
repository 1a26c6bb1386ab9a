"""The journal on JetStream: appending, reading, following, auditing and exporting."""

from __future__ import annotations

from rookery.bus.journal.journal import JetStreamFeed, JetStreamJournal

__all__ = ["JetStreamFeed", "JetStreamJournal"]
