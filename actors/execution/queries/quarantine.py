"""The query ``quarantine``: sets a damaged message of the journal aside.

A fact names the message, with the digest of its body. Every node and every command reads these
facts and skips the message; the message itself stays. A sound message is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rookery.actors.histories import HistoryFold, last_fact_number
from rookery.actors.kernel import Decider
from rookery.actors.kernel.entities import Entity
from rookery.actors.kernel.executors import AskActor
from rookery.actors.messages import FactRecorded, RecordFact
from rookery.bus.ports import Delivery, Journal, StoredMessage
from rookery.schemas.codec import decode_command
from rookery.schemas.commands import QuarantineMessage
from rookery.schemas.digest import ChainCursor, digest_bytes
from rookery.schemas.envelope import FOREIGN_FAMILY, EntityId, HistoryRestart
from rookery.schemas.errors import CodedError, Failed, Refused
from rookery.schemas.facts.node import QUARANTINE_KEY, MessageQuarantined
from rookery.schemas.replies import QuarantineReceipt

__all__ = ["MessageQuarantine", "find_damage"]

_QUARANTINE = EntityId("node", QUARANTINE_KEY)
_RECORDS_CALLS = "turn"


class MessageQuarantine:
    """One per node; lives on the bus's loop."""

    def __init__(
        self, node: str, journal: Journal, deciders: Sequence[Decider], ask: AskActor
    ) -> None:
        self._node, self._journal, self._ask = node, journal, ask
        self._deciders: Mapping[str, Decider] = {one.family: one for one in deciders}

    async def reply(self, delivery: Delivery) -> QuarantineReceipt:
        """The query ``quarantine``; ``Refused`` for a message that readers can use."""
        command = decode_command(
            delivery.body, QuarantineMessage, content_type=delivery.content_type
        )
        stored = await self._journal.at(command.sequence)
        messages = [] if stored is None else await self._messages_of(stored)
        if stored is None or stored not in messages:
            raise Refused(
                "INVALID_ARGUMENT", f"no entity of the journal has message {command.sequence}"
            )
        name = f"message {stored.sequence} of {stored.entity}"
        if stored.quarantined_through or stored.entity == _QUARANTINE:
            raise Refused("GUARD_REJECTED", f"{name} is quarantined, or says what is")
        decider = self._deciders.get(stored.entity.family)
        damage = find_damage(decider, stored.entity, messages).get(stored.sequence)
        if damage is None:
            raise Refused(
                "GUARD_REJECTED",
                f"{name} is sound, and only a damaged one can be set aside",
                hint="rookery journal verify",
            )
        await self._check_no_run_lost(stored, name, decider, messages)
        self._check_confirmed(command, name, decider, messages)
        fact = self._fact(command, stored, messages, damage, delivery.by)
        await self._ask("node", QUARANTINE_KEY, RecordFact(fact), FactRecorded)
        return QuarantineReceipt(
            sequence=stored.sequence,
            entity=str(stored.entity),
            code=damage.code,
            digest=fact.digest,
        )

    def _fact(
        self,
        command: QuarantineMessage,
        stored: StoredMessage,
        messages: Sequence[StoredMessage],
        damage: CodedError,
        by: str,
    ) -> MessageQuarantined:
        return MessageQuarantined(
            node=self._node,
            sequence=stored.sequence,
            family=stored.entity.family,
            key=stored.entity.key,
            digest=digest_bytes(stored.body),
            through=last_fact_number(
                stored.entity, [one for one in messages if one.sequence <= stored.sequence]
            ),
            code=damage.code,
            reason=command.reason,
            actor=command.actor,
            by=by,
        )

    async def _messages_of(self, stored: StoredMessage) -> list[StoredMessage]:
        """The messages of its entity, if its subject names one."""
        if stored.entity.family == FOREIGN_FAMILY:
            return [stored]
        return await self._journal.read(stored.entity)

    async def _check_no_run_lost(
        self,
        stored: StoredMessage,
        name: str,
        decider: Decider | None,
        messages: Sequence[StoredMessage],
    ) -> None:
        """Refuse to set aside what a turn may have recorded of its calls: its run could act again.
        ``destroy`` restarts the turn's history; what is before that may go."""
        if decider is None or stored.entity.family != _RECORDS_CALLS:
            return
        later = (one for one in messages if one.sequence > stored.sequence)
        if await self._has_session(stored.entity.key) and not any(
            _restarts(decider, one) for one in later
        ):
            raise Refused(
                "GUARD_REJECTED",
                f"{name} may hold the record of calls, which must not be made again",
                hint=f"rookery sessions destroy {stored.entity.key}, then quarantine it",
            )

    async def _has_session(self, key: str) -> bool:
        """Whether any run may have been prepared under the key."""
        entity = EntityId("session", key)
        messages = await self._journal.read(entity)
        damaged = find_damage(self._deciders.get("session"), entity, messages)
        return any(one.sequence not in damaged and not one.quarantined_through for one in messages)

    def _check_confirmed(
        self,
        command: QuarantineMessage,
        name: str,
        decider: Decider | None,
        messages: Sequence[StoredMessage],
    ) -> None:
        """Refuse to set aside a message without which nothing works better, unless the command
        names its entity."""
        entity = messages[0].entity
        if command.confirm == str(entity) or (decider and _error(decider, entity, messages)):
            return
        raise Refused(
            "GUARD_REJECTED",
            f"{name} is damaged, but {entity} can be used",
            hint=f"add --confirm {entity} to set the message aside all the same",
        )


def _restarts(decider: Decider, stored: StoredMessage) -> bool:
    """Whether the entity's history begins again with this message."""
    try:
        facts = decider.codec.decode(stored.body)
    except CodedError:
        return False
    return bool(facts) and isinstance(facts[0], HistoryRestart)


def _error(
    decider: Decider, entity_id: EntityId, messages: Sequence[StoredMessage]
) -> CodedError | None:
    """Why the entity cannot be folded."""
    entity = Entity(entity_id, decider)
    entity.fold(decider, None, messages)
    return entity.load_error


def find_damage(
    decider: Decider | None, entity: EntityId, messages: Sequence[StoredMessage]
) -> dict[int, CodedError]:
    """By sequence, why a message of the entity is damaged. The messages after it are folded as if
    it were not there."""
    damaged: dict[int, CodedError] = {}
    cursor, fold = ChainCursor(), None if decider is None else HistoryFold(decider, entity.key)
    for stored in messages:
        if stored.quarantined_through:
            cursor.pass_over(stored.chain)
        elif not cursor.accept(stored.body, stored.chain):
            cursor.pass_over(stored.chain)
            damaged[stored.sequence] = Failed("CHAIN_BROKEN", "it does not continue the chain")
        elif fold is None:
            damaged[stored.sequence] = Failed("FACT_UNKNOWN", f"no family {entity.family}")
        elif (error := fold.add(stored.body)) is not None:
            damaged[stored.sequence] = error
    return damaged
