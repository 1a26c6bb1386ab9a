"""How states with persistent maps become bytes and back.

``immutables.Map`` keeps folding cheap and pure, and no codec knows it: on the way out it is a
plain dictionary, on the way in its type says which. Its keys are texts.
"""

from __future__ import annotations

from types import GenericAlias
from typing import Any, TypeVar, get_args, get_origin

import msgspec
from immutables import Map

__all__ = ["decode_map", "decode_state", "encode_map", "encode_state"]

S = TypeVar("S", bound=msgspec.Struct)


def encode_map(value: Any) -> Any:
    """An ``enc_hook``: what a codec can write in place of a map."""
    if isinstance(value, Map):
        return dict(value)
    raise TypeError(f"a state cannot hold a {type(value).__name__}")


def decode_map(kind: Any, value: Any) -> Any:
    """A ``dec_hook``: the map of type ``kind`` that was written as a dictionary."""
    if get_origin(kind) is not Map:
        raise TypeError(f"a state cannot hold a {kind}")
    plain_kind = GenericAlias(dict, get_args(kind))
    return Map(msgspec.convert(value, plain_kind, dec_hook=decode_map))


def encode_state(state: msgspec.Struct) -> bytes:
    """The state as a snapshot's bytes, the same ones for equal states."""
    return msgspec.msgpack.encode(state, enc_hook=encode_map, order="deterministic")


def decode_state(data: bytes, kind: type[S]) -> S:
    """The state ``encode_state`` wrote."""
    return msgspec.msgpack.decode(data, type=kind, dec_hook=decode_map)
