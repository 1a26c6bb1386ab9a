"""The decider of the family ``hook``: the hooks that operators register for a realm.

Its facts are under the realm's own key. What hooks answer during a run is decided with the run, by
the decider of turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from rookery.actors.hooks.realm.realm_hooks import RealmHooks, change_hooks, evolve_hooks
from rookery.actors.kernel import Decider
from rookery.schemas.codec import FactCodec
from rookery.schemas.envelope import Command, Fact
from rookery.schemas.errors import CodedError, Refused
from rookery.schemas.facts import hook as facts
from rookery.schemas.hooks import ChangeHooks
from rookery.schemas.ids import REALM_KEY

__all__ = ["HooksDecider", "HooksRecorded", "ReadHooks", "check_realm_key"]


class ReadHooks(msgspec.Struct, frozen=True):
    """A query: the realm's hooks as they are recorded."""


class HooksRecorded(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to ``ReadHooks`` and ``ChangeHooks``."""

    hooks: RealmHooks


def check_realm_key(key: str) -> None:
    """Raise ``Refused`` for another key than the realm's own."""
    if key != REALM_KEY:
        raise Refused("INVALID_ARGUMENT", f"the key of the realm's hooks is {REALM_KEY}")


class HooksDecider(Decider):
    """Decides changes of the realm's hooks, which the node that owns them passes on once it has
    tried their executors."""

    family = "hook"
    codec: FactCodec[facts.RegistrationFact] = FactCodec(facts.REGISTRATION_FACTS)
    initial_state = RealmHooks()

    def check_key(self, key: str) -> None:
        check_realm_key(key)

    def decide(self, state: RealmHooks, command: Command[Any], *, now_ms: int) -> Sequence[Fact]:
        del now_ms
        match command.body:
            case ChangeHooks() as change:
                return change_hooks(state, change)
        return ()

    def evolve(self, state: RealmHooks, fact: Any) -> RealmHooks:
        return evolve_hooks(state, fact)

    def reply(
        self, state: RealmHooks, command: Command[Any], facts: Sequence[Fact]
    ) -> msgspec.Struct | CodedError:
        del command, facts
        return HooksRecorded(hooks=state)
