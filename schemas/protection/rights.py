"""Rights: which calls a run may make. On the wire they are called ``grants``.

Sessions, requests and revocations each name rights, and a call needs every one of them. So rights
that apply together are a set, and a further member can only take calls away.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

__all__ = [
    "NO_RIGHTS",
    "RIGHTS_MAX",
    "Rights",
    "RightsSet",
    "SessionRights",
    "SideEffect",
    "ToolRight",
    "after_calls",
    "intersect",
]

RIGHTS_MAX: Final = 64
"""Members of a set, and entries of a list of tools."""


class SideEffect(StrEnum):
    """What a call of a capability may change."""

    NONE = "none"
    READ = "read"
    WRITE = "write"
    NETWORK = "network"
    DATABASE = "database"
    EXTERNAL_SYSTEM = "external_system"


Name = Annotated[str, Meta(max_length=128)]


class ToolRight(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Calls: those that match every field that is set."""

    tool: Name = ""
    """The tool's name in programs."""
    surface: Name = ""
    """All tools of a surface: ``local``, or the name of its workers."""
    when: Annotated[str, Meta(max_length=2_000)] = ""
    """A condition in the language of automatic approvals. It reads arguments as programs pass
    them, and has no ``counts``; a sensitive argument is missing."""


class Rights(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """What a run may call. An unset field restricts nothing. A fact with a field that this version
    does not know is refused, because it may restrict more."""

    tools: tuple[ToolRight, ...] | UnsetType = UNSET
    """Only calls that match one of these; none at all if it is empty."""
    without: tuple[ToolRight, ...] = ()
    """No call that matches one of these, or for which a condition here is undecided."""
    side_effect: SideEffect | UnsetType = UNSET
    """The ceiling, in the order none, read, write, network, database, external_system."""
    calls: Annotated[int, Meta(ge=0, le=(1 << 32) - 1)] | UnsetType = UNSET
    """How many calls each run may request, with those that a fork takes over."""
    session_calls: Annotated[int, Meta(ge=0, le=(1 << 32) - 1)] | UnsetType = UNSET
    """How many calls all runs of the session may request together, in all its generations. A
    session with the memory of another one begins with what that has left."""
    until_ms: Annotated[int, Meta(ge=0, le=(1 << 53) - 1)] | UnsetType = UNSET
    """No call is made from this time on, in milliseconds since 1970."""


RightsSet = tuple[Rights, ...]
"""Rights that apply together, sorted and without repetitions; an empty set restricts nothing."""
_encode: Final = msgspec.json.Encoder(order="deterministic").encode


class SessionRights(msgspec.Struct, frozen=True, kw_only=True):
    """The rights of a session, and where its memory is from."""

    rights: RightsSet = msgspec.field(default=(), name="grants")
    descends_from: tuple[str, ...] = ()
    """The sessions whose memory this one has, by a fork or a restore, and theirs; sorted. A
    revocation in one of them applies here, too."""

    def narrowed(self, rights: RightsSet, descends_from: tuple[str, ...] = ()) -> SessionRights:
        """With these rights and origins as well."""
        origins = tuple(sorted({*self.descends_from, *descends_from}))
        return SessionRights(rights=intersect(self.rights, rights), descends_from=origins)

    def origins_of(self, session: str) -> tuple[str, ...]:
        """The origins of a session that begins with this one's memory."""
        return tuple(one for one in self.descends_from if one != session)


NO_RIGHTS: Final = SessionRights()
"""Of a session that nothing restricts."""


def after_calls(rights: RightsSet, calls: int) -> RightsSet:
    """What is left of the rights of a session that has requested so many calls, for another one
    that begins with its memory."""
    left = (
        one
        if one.session_calls is UNSET
        else replace(one, session_calls=max(0, one.session_calls - calls))
        for one in rights
    )
    return intersect(tuple(left))


def intersect(*sets: RightsSet) -> RightsSet:
    """The rights that apply where all of these do."""
    members = {_encode(rights): rights for one in sets for rights in one}
    return tuple(members[key] for key in sorted(members))
