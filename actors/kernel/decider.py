"""``Decider``: the rules of one family, as the kernel calls them; its facts and its states."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, auto
from types import GenericAlias, MappingProxyType
from typing import (
    Any,
    ClassVar,
    Generic,
    Protocol,
    TypeVar,
    get_args,
    get_origin,
    runtime_checkable,
)

import msgspec
from immutables import Map
from msgspec.structs import force_setattr

from rookery.bus.ports import Delivery
from rookery.schemas.codec import FactCodec
from rookery.schemas.envelope import DEFAULT_CLASSES, Command, Fact, FactClasses
from rookery.schemas.errors import CodedError, Refused
from rookery.schemas.ids import check_client_session, decode_typed_text, encode_typed_text

__all__ = [
    "Decider",
    "Effect",
    "FactBuilder",
    "FoldedFacts",
    "ReadScope",
    "ReadsBeforeDeciding",
    "RecordsMalformed",
    "RedirectsToQuery",
    "ResumesFromState",
    "decode_map",
    "decode_state",
    "encode_map",
    "encode_state",
]

# --- fact builder ---------------------------------------------------------------------------------

# ``FactBuilder``: the facts of one decision, each folded before the next is decided.


S = TypeVar("S")
F = TypeVar("F", bound=Fact)


class FoldedFacts(list[Fact]):
    """Facts and the state after them: the kernel does not fold them again. So no fold of them may
    read what the kernel fills in (``fill_envelope``)."""

    def __init__(self, facts: Iterable[Fact], state: Any) -> None:
        super().__init__(facts)
        self.state = state


class FactBuilder(Generic[S, F]):
    """The facts of one decision and the state after them. Deciders subclass it with one method per
    step of their decisions. The builder is pure: the kernel commits ``facts``.

    A fact is folded when the state is read, so the last facts of a decision are not folded here.
    """

    def __init__(self, state: S, evolve: Callable[[S, Any], S], facts: Sequence[F] = ()) -> None:
        """``state``: after ``facts``."""
        self.facts: list[F] = list(facts)
        self._folded = len(self.facts)
        self._before = self._state = state
        self._evolve = evolve

    @property
    def state(self) -> S:
        """The state after all facts added so far."""
        while self._folded < len(self.facts):
            self._before, fact = self._state, self.facts[self._folded]
            self._state = self._evolve(self._state, fact)
            self._folded += 1
        return self._state

    def add(self, fact: F) -> F:
        """Append a new fact."""
        self.facts.append(fact)
        return fact

    def amend(self, **fields: Any) -> None:
        """Set fields of the last fact."""
        for name, value in fields.items():
            force_setattr(self.facts[-1], name, value)
        if self._folded == len(self.facts):
            self._state, self._folded = self._before, self._folded - 1


# --- state codec ----------------------------------------------------------------------------------

# Encodes states with persistent maps, and with ids of the contract, for snapshots.
#
# ``immutables.Map`` makes folding cheap and pure, but no codec supports it: it is encoded as a
# plain dictionary with text keys and decoded by its type.


Stored = TypeVar("Stored", bound=msgspec.Struct)


def encode_map(value: Any) -> Any:
    """An ``enc_hook``: a map as a plain dictionary, a typed text as a bare one."""
    return dict(value) if isinstance(value, Map) else encode_typed_text(value)


def decode_map(kind: Any, value: Any) -> Any:
    """A ``dec_hook``: the map of type ``kind`` from its dictionary; or a typed text."""
    if get_origin(kind) is not Map:
        return decode_typed_text(kind, value)
    plain_kind = GenericAlias(dict, get_args(kind))
    return Map(msgspec.convert(value, plain_kind, dec_hook=decode_map))


def encode_state(state: msgspec.Struct) -> bytes:
    """Encode a state; equal states give equal bytes."""
    return msgspec.msgpack.encode(state, enc_hook=encode_map, order="deterministic")


def decode_state(data: bytes, kind: type[Stored]) -> Stored:
    """Decode a state that ``encode_state`` encoded."""
    return msgspec.msgpack.decode(data, type=kind, dec_hook=decode_map)


# --- decider --------------------------------------------------------------------------------------

# A decider maps state, command and time to facts, folds facts into state, and derives replies and
# effects. Retries, sockets and clocks belong to the kernel, which calls each decider from the
# handler of its actor only, on the bus's loop: a rule must not wait. All rules are pure functions
# of the state. Values that only this process knows (claims, slots, quotas) are kept outside the
# states: ``decide`` reserves them, and ``on_state`` corrects them when a decision is not committed.


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """Work to do because a fact is committed. After a crash the node performs it again unless its
    result is a fact, so the executor must recognise a repeated effect by its ``key``."""

    is_instant: ClassVar[bool] = False
    """Whether its handler is a plain function, which waits for nothing."""
    key: str


class Decider(ABC):
    """The rules of one family. A subclass defines ``decide`` and ``evolve``; the defaults describe
    a family of sessions that reacts to no facts and causes no effects."""

    family: str
    """The family of the facts that this decider alone writes."""
    schema: int = 1
    """Version of the state: the kernel ignores snapshots of another version."""
    verbs: Mapping[str, type[msgspec.Struct]] = MappingProxyType({})
    """The command verbs and the types of their bodies."""
    codec: FactCodec[Any]
    older_codecs: Mapping[str, FactCodec[Any]] = MappingProxyType({})
    """Families that this decider reads and no decider writes any more; their facts are in
    ``observes`` and precede the first fact of their kind in this family."""
    initial_state: msgspec.Struct
    """The state before the first fact."""
    reacts_to: frozenset[str] = frozenset()
    """Families whose facts arrive as commands (verb: the family, body: the fact), in order. A
    reaction that leaves no fact may be decided again."""
    reaction_types: frozenset[type[Fact]] = frozenset()
    """The facts of those families that ``decide`` gets; empty: all. Facts that are observed too are
    always folded."""
    observes: frozenset[str] = frozenset()
    """Families whose facts are folded into this family's states and cause no facts here. The
    copy may lag behind."""
    effect_types: frozenset[type[Fact]] = frozenset()
    """The facts of the family that may cause an effect."""
    handles_duplicates: bool = False
    """Whether ``decide`` is called for a command that was decided before."""
    stores_large_bodies: bool = False
    """Whether a body too large for a fact is stored as a blob before ``decide`` is called."""

    signed_verbs: frozenset[str] = frozenset()
    """Verbs whose commands prove their sender by themselves, and come from the inbox only. Of one
    that is refused nothing remains: no reply, no dead letter, no fact."""

    def decode_signed(self, delivery: Delivery) -> tuple[str, msgspec.Struct]:
        """The id and the body of a command of ``signed_verbs``; ``Refused`` if it has not the form
        of one."""
        raise Refused("UNKNOWN_VERB", f"{self.family} has no signed verb {delivery.verb[:80]!r}")

    def on_refused(self, delivery: Delivery, error: CodedError) -> None:
        """A command of ``signed_verbs`` was refused; must not raise."""
        del delivery, error

    def check_key(self, key: str) -> None:
        """Raise ``Refused`` for a key that no entity of this family can have. Keys that begin with
        ``_`` are the realm's own."""
        check_client_session(key)

    def initial(self, key: str) -> Any:
        """The state before the first fact."""
        del key
        return self.initial_state

    @abstractmethod
    def decide(self, state: Any, command: Command[Any], *, now_ms: int) -> Sequence[Fact]:
        """The facts this command causes, none if nothing changes; ``Refused`` if it may not."""

    @abstractmethod
    def evolve(self, state: Any, fact: Any) -> Any:
        """Fold one fact. Total: it never raises, reads no clock and uses nothing observed, because
        a reload folds the entity's own facts first."""

    def observe(self, state: Any, fact: Any) -> Any:
        """Fold one fact of a family in ``observes``; total as well."""
        del fact
        return state

    def reply(
        self, state: Any, command: Command[Any], facts: Sequence[Fact]
    ) -> msgspec.Struct | CodedError | None:
        """The reply to send once ``facts``, those of this command, are committed. ``None`` if an
        effect replies later; an error if the command was refused and left a fact about it."""
        del command, facts
        shown: msgspec.Struct = state
        return shown

    def must_be_fenced(self, facts: Sequence[Fact]) -> bool:
        """Whether these facts may only be committed while no other family of the key has facts
        that this entity has not seen."""
        del facts
        return False

    def classes(self, state: Any, command: Command[Any], facts: Sequence[Fact]) -> FactClasses:
        """What the facts of a command claim at least; ``state``: before them."""
        del state, command, facts
        return DEFAULT_CLASSES

    def hold_s(self, state: Any, facts: Sequence[Fact]) -> float:
        """How long the facts of a reaction, or of an executor's command, may wait to be committed
        together with the entity's next ones; ``state``: after them. Their effects start and the
        executor gets its reply meanwhile, so these must do nothing that may not be repeated before
        a later fact. After a crash a reaction is decided again, and the executor begins again."""
        del state, facts
        return 0.0

    def effects(self, state: Any, fact: Any) -> Sequence[Effect]:
        """The effects of a committed ``fact``. ``state`` is the state after its command, or a later
        one when a node dispatches the effects again after a crash."""
        del state, fact
        return ()

    def on_state(self, key: str, state: Any | None) -> None:
        """Receive an entity's latest state, or ``None`` when the actor evicts the entity: for
        counts over entities, which no single state contains."""
        del key, state

    @staticmethod
    def codecs_of(deciders: Sequence[Decider]) -> dict[str, FactCodec[Any]]:
        """By family, what decodes its messages; older families included."""
        older = {family: codec for one in deciders for family, codec in one.older_codecs.items()}
        return older | {one.family: one.codec for one in deciders}

    def dump(self, state: Any) -> bytes:
        """Encode a state for a snapshot."""
        return encode_state(state)

    def load(self, data: bytes) -> Any:
        """Decode a state that ``dump`` encoded."""
        return decode_state(data, type(self.initial_state))


@runtime_checkable
class RecordsMalformed(Protocol):
    """A decider that records a command whose body cannot be decoded."""

    def on_malformed(self, verb: str, body: bytes, error: CodedError) -> msgspec.Struct | None:
        """The command to decide in place of the malformed body; ``None`` if the refusal leaves no
        fact."""


@runtime_checkable
class RedirectsToQuery(Protocol):
    """A decider some of whose commands are queries: the node answers them, and no entity is
    loaded."""

    def redirects_to(self, command: Command[Any]) -> str:
        """The verb of the query that answers the command; empty if the command is decided."""


class ReadScope(Enum):
    """What the actor reads from the journal before it decides a command."""

    OTHERS = auto()
    """The facts of other families, including those not yet delivered."""
    ALL = auto()
    """Also the entity's own history, to which another node may have written."""


@runtime_checkable
class ReadsBeforeDeciding(Protocol):
    """A decider some of whose commands need the newest facts of the journal."""

    def read_scope(self, state: Any, command: Command[Any]) -> ReadScope | None:
        """What to read before deciding ``command``; ``None`` if nothing."""


@runtime_checkable
class ResumesFromState(Protocol):
    """A decider that derives unfinished effects from a state, without the facts before it."""

    def pending_effects(self, state: Any, key: str) -> Sequence[Effect]:
        """The effects that a state read from the journal calls for, because they may be lost with
        the node that owned the key. They are idempotent: this node or another owner may have
        started them too."""
