"""The journal as an operator sees it: the check of all its messages."""

from rookery.ops.journal.journal_check import JournalCheck, MessageDamage

__all__ = ["JournalCheck", "MessageDamage"]
