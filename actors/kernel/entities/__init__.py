"""The inside of an actor: its mailbox, its entities, and the unit of work of what it decides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rookery.schemas.lazy_names import lazy_names

if TYPE_CHECKING:
    from rookery.actors.kernel.entities.entity import Entity, PendingCommand
    from rookery.actors.kernel.entities.mailbox import Mailbox
    from rookery.actors.kernel.entities.unit_of_work import Commit, UnitOfWork

__all__ = ["Commit", "Entity", "Mailbox", "PendingCommand", "UnitOfWork"]

__getattr__ = lazy_names(
    __name__,
    {
        "entity": (
            "Entity",
            "PendingCommand",
        ),
        "mailbox": ("Mailbox",),
        "unit_of_work": (
            "Commit",
            "UnitOfWork",
        ),
    },
)
