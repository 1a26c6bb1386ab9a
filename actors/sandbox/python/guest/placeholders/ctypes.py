"""Tells packages the sizes of numbers; the guest has nothing else of ``ctypes``."""

from __future__ import annotations

import struct

__all__ = ["c_int", "c_long", "c_longlong", "c_size_t", "sizeof"]


class c_int:  # noqa: N801 - names of ctypes.
    _type_ = "i"


class c_long:  # noqa: N801
    _type_ = "l"


class c_longlong:  # noqa: N801
    _type_ = "q"


class c_size_t:  # noqa: N801
    _type_ = "N"


def sizeof(kind: type[c_int | c_long | c_longlong | c_size_t]) -> int:
    return struct.calcsize(kind._type_)
