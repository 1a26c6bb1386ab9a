"""Two small deciders for tests of the kernel: ``tally`` adds numbers, ``echo`` reacts to it.

``add {by}`` leaves one fact, ``look`` none, ``close`` a fenced one. A total that is a multiple of
ten causes an effect. ``echo`` repeats every number it gets; ``hush`` is its fenced end. The other
deciders here have a fault at thirteen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rookery.actors.kernel.decider import Decider, Effect
from rookery.schemas.codec import FactCodec
from rookery.schemas.envelope import Command, Fact
from rookery.schemas.errors import Refused


class Added(Fact, frozen=True, kw_only=True, tag="tally.added.v1"):
    amount: int
    total: int = 0
    blob: str = ""


class Closed(Fact, frozen=True, kw_only=True, tag="tally.closed.v1"):
    """No number is added after it; fenced over the key's families."""


class Heard(Fact, frozen=True, kw_only=True, tag="echo.heard.v1"):
    amount: int


class Hushed(Fact, frozen=True, kw_only=True, tag="echo.hushed.v1"):
    """Fenced: it follows every fact of the tally."""

    total: int


class Add(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    amount: int = 1
    padding: str = ""


class Ask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of verbs without arguments."""


class Total(msgspec.Struct, frozen=True):
    total: int = 0
    numbers: tuple[int, ...] = ()
    closed: bool = False


class Ring(Effect, frozen=True, kw_only=True):
    total: int


class Chime(Ring, frozen=True, kw_only=True):
    is_instant = True


class SmallDecider(Decider):
    """The members that the tests' deciders share."""

    initial_state: msgspec.Struct = Total()
    stores_large_bodies = True

    def __init__(self, schema: int = 1) -> None:
        self.schema = schema

    def check_key(self, key: str) -> None:
        if key.startswith("-"):
            raise Refused("INVALID_ARGUMENT", "a key cannot start with a dash")

    def must_be_fenced(self, facts: Sequence[Fact]) -> bool:
        return any(isinstance(fact, Closed | Hushed) for fact in facts)

    def dump(self, state: Total) -> bytes:
        return msgspec.json.encode(state)

    def load(self, data: bytes) -> Any:
        return msgspec.json.decode(data, type=type(self.initial_state))


class TallyDecider(SmallDecider):
    family = "tally"
    effect_types = frozenset({Added})
    verbs: Mapping[str, type[msgspec.Struct]] = {"add": Add, "look": Ask, "close": Ask}
    codec: FactCodec[Any] = FactCodec(Added | Closed)

    def decide(self, state: Total, command: Command[Any], *, now_ms: int) -> Sequence[Fact]:
        match command.verb, command.body:
            case "add", Add() if state.closed:
                raise Refused("GUARD_REJECTED", "the tally is closed")
            case "add", Add(amount=amount):
                return [Added(amount=amount, total=state.total + amount, blob=command.blob)]
            case "close", _ if not state.closed:
                return [Closed()]
            case _:
                return []

    def evolve(self, state: Total, fact: Any) -> Total:
        if isinstance(fact, Closed):
            return Total(state.total, state.numbers, closed=True)
        return Total(state.total + fact.amount, (*state.numbers, fact.amount), state.closed)

    def effects(self, state: Total, fact: Fact) -> Sequence[Effect]:
        if isinstance(fact, Added) and fact.total % 10 == 0:
            return [Ring(key=fact.id, total=fact.total)]
        return ()


class ChimingTally(TallyDecider):
    """Its effects are instant."""

    def effects(self, state: Total, fact: Fact) -> Sequence[Effect]:
        return [Chime(key=ring.key, total=fact.total) for ring in super().effects(state, fact)]


class EchoDecider(SmallDecider):
    family = "echo"
    reacts_to = frozenset({"tally"})
    verbs: Mapping[str, type[msgspec.Struct]] = {"echo": Ask, "hush": Ask}
    codec: FactCodec[Any] = FactCodec(Heard | Hushed)

    def decide(self, state: Total, command: Command[Any], *, now_ms: int) -> Sequence[Fact]:
        match command.verb, command.body:
            case "tally", Added(amount=amount):
                return [Heard(amount=amount)]
            case "hush", _:
                return [Hushed(total=state.total)]
            case _:
                return []

    def evolve(self, state: Total, fact: Any) -> Total:
        if isinstance(fact, Hushed):
            return Total(state.total, state.numbers, closed=True)
        return Total(state.total + fact.amount, (*state.numbers, fact.amount), state.closed)


class PatientEcho(EchoDecider):
    """What it repeats, or an executor adds, may wait for its next fact; a number that is divisible
    by seven causes an effect."""

    effect_types = frozenset({Heard})

    def decide(self, state: Total, command: Command[Any], *, now_ms: int) -> Sequence[Fact]:
        if isinstance(command.body, Add):
            return [Heard(amount=command.body.amount)]
        return super().decide(state, command, now_ms=now_ms)

    def hold_s(self, state: Any, facts: Sequence[Fact]) -> float:
        return 1.0 if all(isinstance(fact, Heard) for fact in facts) else 0.0

    def effects(self, state: Total, fact: Fact) -> Sequence[Effect]:
        if isinstance(fact, Heard) and fact.amount % 7 == 0:
            return [Ring(key=fact.id, total=fact.amount)]
        return ()


class PickyEcho(EchoDecider):
    """Refuses thirteen."""

    def decide(self, state: Total, command: Command[Any], *, now_ms: int) -> Sequence[Fact]:
        if command.verb == "tally" and command.body.amount == 13:
            raise Refused("GUARD_REJECTED", "thirteen is not repeated")
        return super().decide(state, command, now_ms=now_ms)


class FrailEcho(EchoDecider):
    """Fails at thirteen."""

    def decide(self, state: Total, command: Command[Any], *, now_ms: int) -> Sequence[Fact]:
        if command.verb == "tally" and command.body.amount == 13:
            raise RuntimeError("thirteen")
        return super().decide(state, command, now_ms=now_ms)


class FrailTally(TallyDecider):
    """Fails at thirteen in one of its rules; in ``check_key`` at the key ``thirteen``."""

    def __init__(self, rule: str) -> None:
        super().__init__()
        self._rule = rule

    def check_key(self, key: str) -> None:
        self._fail("check_key", key == "thirteen")
        super().check_key(key)

    def decide(self, state: Total, command: Command[Any], *, now_ms: int) -> Sequence[Fact]:
        self._fail("decide", isinstance(command.body, Add) and command.body.amount == 13)
        return super().decide(state, command, now_ms=now_ms)

    def evolve(self, state: Total, fact: Any) -> Total:
        self._fail("evolve", _is_thirteen(fact))
        return super().evolve(state, fact)

    def reply(self, state: Total, command: Command[Any], facts: Sequence[Fact]) -> Total | None:
        self._fail("answer", isinstance(command.body, Add) and command.body.amount == 13)
        return super().reply(state, command, facts)

    def must_be_fenced(self, facts: Sequence[Fact]) -> bool:
        self._fail("fenced", any(map(_is_thirteen, facts)))
        return super().must_be_fenced(facts)

    def effects(self, state: Total, fact: Fact) -> Sequence[Effect]:
        self._fail("effects", _is_thirteen(fact))
        return super().effects(state, fact)

    def on_state(self, key: str, state: Total | None) -> None:
        self._fail("note", state is not None and 13 in state.numbers)

    def dump(self, state: Total) -> bytes:
        self._fail("dump", 13 in state.numbers)
        return super().dump(state)

    def load(self, data: bytes) -> Total:
        self._fail("load", b"13" in data)
        return super().load(data)

    def _fail(self, rule: str, unlucky: bool) -> None:
        if unlucky and rule == self._rule:
            raise RuntimeError(f"thirteen, in {rule}")


def _is_thirteen(fact: Any) -> bool:
    return isinstance(fact, Added) and fact.amount == 13


class PunctualTally(TallyDecider):
    """Notes when every command arrived and was decided."""

    def __init__(self) -> None:
        super().__init__()
        self.times: dict[str, tuple[int, int]] = {}

    def decide(self, state: Total, command: Command[Any], *, now_ms: int) -> Sequence[Fact]:
        self.times[command.id] = command.arrived_ms, now_ms
        return super().decide(state, command, now_ms=now_ms)


class RedirectingTally(TallyDecider):
    """``look`` is redirected to the query ``greet``, and so is an ``add`` of 0."""

    def redirects_to(self, command: Command[Any]) -> str:
        asks = command.verb == "look" or (
            isinstance(command.body, Add) and command.body.amount == 0
        )
        if asks and command.key == "thirteen":
            raise RuntimeError("thirteen, in diverts")
        return "greet" if asks else ""


class SelectiveEcho(EchoDecider):
    """Reacts only to the end of a tally."""

    reaction_types = frozenset({Closed})

    def decide(self, state: Total, command: Command[Any], *, now_ms: int) -> Sequence[Fact]:
        assert not isinstance(command.body, Added), "it is passed over"
        if isinstance(command.body, Closed):
            return [Heard(amount=1)]
        return super().decide(state, command, now_ms=now_ms)
