"""Upcasting of old facts. Wire names are never renamed, versions only grow.

Functions on plain dictionaries lift a fact ``family.kind.vN`` by one version each. A newer version
than this node's is refused by code, because a guess would rebuild a wrong state.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from rookery.schemas.errors import Failed

__all__ = ["NO_UPCASTS", "Upcasts"]

Raw = dict[str, Any]
_NAME = re.compile(r"(?P<kind>[a-z_]+\.[a-z0-9_]+)\.v(?P<version>[0-9]{1,9})\Z")


class Upcasts:
    """Functions by the wire name they lift from; each returns the next version's dictionary."""

    def __init__(self, lifts: Mapping[str, Callable[[Raw], Raw]]) -> None:
        for name in lifts:
            if not _NAME.match(name):
                raise ValueError(f"a lift starts from a wire name, not from {name!r}")
        self._lifts = dict(lifts)

    def apply(self, raw: Raw, known: Collection[str]) -> Raw:
        """``raw`` lifted to a name in ``known``, or an error with the missing step."""
        name = str(raw.get("type", ""))
        while name not in known:
            lift = self._lifts.get(name)
            if lift is None:
                raise _unknown(name, known)
            try:
                raw = lift(dict(raw))
            except (LookupError, TypeError, ValueError) as error:
                raise Failed("FACT_INVALID", f"{name} cannot be lifted: {error!r}") from error
            name = _next(name)
            raw["type"] = name
        return raw


def _next(name: str) -> str:
    kind, _, version = name.rpartition(".v")
    return f"{kind}.v{int(version) + 1}"


def _unknown(name: str, known: Collection[str]) -> Failed:
    found = _NAME.match(name)
    ours = [
        int(k.rpartition(".v")[2]) for k in known if found and k.startswith(found["kind"] + ".v")
    ]
    if found and ours and int(found["version"]) > max(ours):
        return Failed(
            "FACT_VERSION_UNSUPPORTED",
            f"{name} is newer than v{max(ours)}, the newest version this node reads",
            hint="upgrade this node before it serves this realm",
        )
    return Failed("FACT_UNKNOWN", f"this node has no fact {name[:80]!r}")


NO_UPCASTS = Upcasts({})
