"""Encodes states with persistent maps for snapshots.

``immutables.Map`` makes folding cheap and pure, but no codec supports it: it is encoded as a plain
dictionary with text keys and decoded by its type.
"""

from __future__ import annotations

from types import GenericAlias
from typing import Any, TypeVar, get_args, get_origin

import msgspec
from immutables import Map

__all__ = ["decode_map", "decode_state", "encode_map", "encode_state"]

S = TypeVar("S", bound=msgspec.Struct)


def encode_map(value: Any) -> Any:
    """An ``enc_hook``: a map as a plain dictionary."""
    if isinstance(value, Map):
        return dict(value)
    raise TypeError(f"a state cannot hold a {type(value).__name__}")


def decode_map(kind: Any, value: Any) -> Any:
    """A ``dec_hook``: the map of type ``kind`` from its dictionary."""
    if get_origin(kind) is not Map:
        raise TypeError(f"a state cannot hold a {kind}")
    plain_kind = GenericAlias(dict, get_args(kind))
    return Map(msgspec.convert(value, plain_kind, dec_hook=decode_map))


def encode_state(state: msgspec.Struct) -> bytes:
    """Encode a state; equal states give equal bytes."""
    return msgspec.msgpack.encode(state, enc_hook=encode_map, order="deterministic")


def decode_state(data: bytes, kind: type[S]) -> S:
    """Decode a state that ``encode_state`` encoded."""
    return msgspec.msgpack.decode(data, type=kind, dec_hook=decode_map)
