"""The JSON form of states and effects, in the words of ``machines.json``.

Enums become their variants, sets become sorted lists, maps become objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

import msgspec

from rookery.actors.admission import LIFECYCLE
from rookery.actors.kernel.machines import Machine, SessionHost, TransitionEffect
from rookery.schemas.enums import Variant

__all__ = ["spell_effect", "to_plain", "variables"]


def to_plain(value: Any) -> Any:
    """``value`` as JSON."""
    if isinstance(value, Variant):
        return value.variant
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, frozenset):
        return sorted(to_plain(member) for member in value)
    if isinstance(value, Mapping):
        return {key: to_plain(value[key]) for key in sorted(value)}
    if isinstance(value, msgspec.Struct):
        return {name: to_plain(getattr(value, name)) for name in value.__struct_fields__}
    return value


def variables(machine: Machine[Any], state: Any) -> dict[str, Any]:
    """A machine's own variables, with its phase or the map that replaces it. The host's variables
    belong to session_lifecycle; a machine that uses the host's phase has no other variables."""
    shown: dict[str, Any] = to_plain(state)
    if isinstance(state, SessionHost) and machine is not LIFECYCLE:
        return {"phase": shown["phase"]}
    shown.pop("host", None)
    return shown


def spell_effect(effect: TransitionEffect) -> dict[str, Any]:
    """The effect's name, and its fields in their order."""
    return {"name": effect.__struct_config__.tag, "fields": to_plain(effect)}
