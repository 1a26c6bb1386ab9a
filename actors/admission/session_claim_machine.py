"""session_claim: within one registry a session id has at most one holder. The table of the machine;
``session_claims`` has the registry and the claims."""

from __future__ import annotations

import msgspec
from immutables import Map

from rookery.actors.kernel.machines import Machine, MachineInput, Transition, TransitionEffect

__all__ = ["CLAIM", "ClaimAcquired", "ClaimGiven", "ClaimReleased", "HeldClaims"]

FREE, HELD = "Free", "Held"


class HeldClaims(msgspec.Struct, frozen=True, kw_only=True):
    """The session ids that are held."""

    claims: Map[str, str] = Map()


class _ClaimParams(msgspec.Struct, frozen=True, kw_only=True):
    session_id: str
    row: str = ""


class ClaimAcquired(_ClaimParams, frozen=True, kw_only=True):
    """The id is now held."""


class ClaimReleased(_ClaimParams, frozen=True, kw_only=True):
    """The id is now free."""


class ClaimGiven(TransitionEffect, frozen=True, kw_only=True, tag="SessionClaim"):
    """Give the caller a token for the id."""

    session_id: str


def free_claim(held: HeldClaims, fact: ClaimReleased) -> HeldClaims:
    if fact.session_id not in held.claims:
        return held
    return HeldClaims(claims=held.claims.delete(fact.session_id))


CLAIM = Machine(
    "session_claim",
    handle="SessionClaimHandle",
    phases=(FREE, HELD),
    initial=HeldClaims(),
    inputs={
        "try_acquire": MachineInput(ClaimAcquired, ("session_id",)),
        "release": MachineInput(ClaimReleased, ("session_id",)),
    },
    rows=(
        Transition(
            "TryAcquire",
            "try_acquire",
            lambda held, fact: fact.session_id not in held.claims,
            lambda held, fact: HeldClaims(claims=held.claims.set(fact.session_id, HELD)),
            (lambda _, fact: ClaimGiven(session_id=fact.session_id),),
        ),
        Transition("Release", "release", lambda *_: True, free_claim),
    ),
    phase=lambda held, fact: held.claims.get(fact.session_id, FREE),
)
