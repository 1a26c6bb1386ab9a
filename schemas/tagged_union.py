"""Externally tagged unions: an object with one member, named by the case it holds.

``{"Deny": {"reason": ...}}`` is how the seeds write such a union. Here it is a struct with one
optional field a case, of which exactly one is set.
"""

from __future__ import annotations

import msgspec

__all__ = ["Tagged"]


class Tagged(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="pascal"):
    """What has exactly one of its fields set."""

    def __post_init__(self) -> None:
        if sum(getattr(self, name) is not None for name in self.__struct_fields__) != 1:
            cases = ", ".join(self.__struct_encode_fields__)
            raise ValueError(f"{type(self).__name__} is exactly one of {cases}")
