"""What a concern is to the kernel: the rules of one family of facts, and nothing that runs.

A concern is given state, commands and time and says which facts follow, what state they make, how
to answer and which effects they call for. Everything that has threads, retries, sockets or a clock
is the kernel's, which calls each concern from one thread, its actor's. What follows from a state is
pure. Only what this process alone knows (claims, places, quotas) is kept beside the states: taken
in ``decide``, and put right by ``note`` when a draft comes to nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Any, Protocol, runtime_checkable

import msgspec

from rookery.schemas.codec import FactCodec
from rookery.schemas.envelope import Command, Fact
from rookery.schemas.errors import CodedError

__all__ = [
    "Decider",
    "Effect",
    "ReadScope",
    "ReadsBeforeDeciding",
    "RecordsMalformed",
    "RedirectsToQuery",
    "ResumesFromState",
]


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """Something to do in the world because a fact stands. Done again after a crash unless its
    result is a fact: whoever performs it must be able to tell by ``key``."""

    key: str


class Decider(Protocol):
    """The rules of one family."""

    family: str
    """The family it alone writes."""
    schema: int
    """Version of its states: a snapshot of another version is ignored."""
    verbs: Mapping[str, type[msgspec.Struct]]
    """The commands it takes, and their bodies."""
    codec: FactCodec[Any]
    reacts_to: frozenset[str]
    """Families whose facts are handed to it as commands (verb: the family, body: the fact), in
    order and until one leaves a fact: a reaction that changes nothing may be asked for again."""
    observes: frozenset[str]
    """Families whose facts are folded into its states and leave nothing in its own: a copy of what
    others decided, which may lag behind."""
    has_effects: bool
    """Whether any fact of the family calls for an effect."""
    handles_duplicates: bool
    """Whether ``decide`` is asked about a command that was worked off before."""
    stores_large_bodies: bool
    """Whether a body too large for a fact is kept as a blob, before anything is decided on it."""

    def check_key(self, key: str) -> None:
        """Refuse a key no entity of this family can have."""

    def initial(self, key: str) -> Any:
        """The state before the first fact."""

    def decide(self, state: Any, command: Command[Any], *, now_ms: int) -> Sequence[Fact]:
        """The facts this command causes, none if nothing changes; ``Refused`` if it may not."""

    def evolve(self, state: Any, fact: Any) -> Any:
        """Fold one fact. Total: never raises, never looks at a clock, nor at what was observed:
        on reloading its own facts are folded first."""

    def observe(self, state: Any, fact: Any) -> Any:
        """Fold one fact of a family it ``observes``; total as well."""

    def reply(
        self, state: Any, command: Command[Any], facts: Sequence[Fact]
    ) -> msgspec.Struct | CodedError | None:
        """What to tell whoever asked, once it is durable; ``None`` if an effect will tell later.
        ``facts`` are those the command left just now: none if it changed nothing. An error is
        told of a command that was refused and has left a fact to say so."""

    def must_be_fenced(self, facts: Sequence[Fact]) -> bool:
        """Whether these facts may only stand if no other family of the key has moved on."""

    def effects(self, state: Any, fact: Any) -> Sequence[Effect]:
        """What to do because ``fact`` stands; ``state`` is the one after it or, where they start
        again after a crash, a later one."""

    def on_state(self, key: str, state: Any | None) -> None:
        """An entity's state as last decided or read, ``None`` when its actor lets go of it: for
        counts over entities, which no single state knows."""

    def dump(self, state: Any) -> bytes:
        """A state as a snapshot's bytes."""

    def load(self, data: bytes) -> Any:
        """The state ``dump`` wrote."""


@runtime_checkable
class RecordsMalformed(Protocol):
    """A concern that has it on record when it is sent what it cannot read."""

    def on_malformed(self, verb: str, body: bytes, error: CodedError) -> msgspec.Struct | None:
        """What to decide on instead of a body that does not have the verb's form; ``None`` if the
        refusal is to leave nothing."""


@runtime_checkable
class RedirectsToQuery(Protocol):
    """A concern some of whose commands only ask: nothing is decided about those, no entity is
    touched, and a query of the node answers them."""

    def redirects_to(self, command: Command[Any]) -> str:
        """The verb of the query that answers; empty if the command is to be decided."""


class ReadScope(Enum):
    """What is read from the journal before a command is decided."""

    OTHERS = auto()
    """What other families did, whether or not it was ever handed over."""
    ALL = auto()
    """That, and the entity's own history: somebody else may have written meanwhile."""


@runtime_checkable
class ReadsBeforeDeciding(Protocol):
    """A concern some of whose commands are decided on nothing but what the journal says by then."""

    def read_scope(self, state: Any, command: Command[Any]) -> ReadScope | None:
        """What is read before ``command`` is decided."""


@runtime_checkable
class ResumesFromState(Protocol):
    """A concern whose states can say what they call for, without the facts that led to them."""

    def pending_effects(self, state: Any, key: str) -> Sequence[Effect]:
        """What a state that was read from the journal calls for: the effects of its facts may have
        been lost with the node that was to see to them. Another owner may have begun them too, and
        so may this node: they come to the same, however often they are done."""
