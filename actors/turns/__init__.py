"""Turns: the state machine of a run, from its start to exactly one end."""

from __future__ import annotations

from rookery.actors.turns.decider import TurnsDecider
from rookery.actors.turns.state import ImmediateKind
from rookery.actors.turns.transitions import Turn

__all__ = ["ImmediateKind", "Turn", "TurnsDecider"]
