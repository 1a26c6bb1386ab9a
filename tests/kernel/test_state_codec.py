"""States with persistent maps survive a snapshot, whatever is in the maps."""

from __future__ import annotations

import msgspec
import pytest
from immutables import Map

from rookery.actors.kernel.decider import decode_state, encode_state
from rookery.actors.kernel.machines.machine import HostPhase


class Garden(msgspec.Struct, frozen=True, kw_only=True):
    plants: Map[str, Map[str, HostPhase]] = Map()
    gates: frozenset[str] = frozenset()


def test_a_map_of_maps_comes_back_as_it_was_down_to_its_enums() -> None:
    garden = Garden(plants=Map(bed=Map(rose=HostPhase.IDLE)), gates=frozenset("ab"))
    back = decode_state(encode_state(garden), Garden)
    assert back == garden
    assert back.plants["bed"]["rose"] is HostPhase.IDLE


def test_equal_states_have_equal_bytes() -> None:
    names = [f"bed {number}" for number in range(50)]
    forwards, backwards = Garden(), Garden()
    for name, other in zip(names, reversed(names), strict=True):
        forwards = Garden(plants=forwards.plants.set(name, Map()), gates=frozenset(names))
        backwards = Garden(plants=backwards.plants.set(other, Map()), gates=frozenset(names))
    assert encode_state(forwards) == encode_state(backwards)


def test_a_type_that_no_state_can_hold_is_named_in_the_error() -> None:
    class Odd(msgspec.Struct):
        thing: complex

    with pytest.raises(TypeError, match="complex"):
        encode_state(Odd(1j))
    with pytest.raises(msgspec.ValidationError, match="complex"):
        decode_state(msgspec.msgpack.encode({"thing": 1}), Odd)
