"""Facts of the family ``code``: the programs in which the model of a run acts.

They are in the messages of the entity ``turn``, whose decider writes them. A program is a call of
``run_code``, which the turn's machine knows as one operation; the calls of the program are calls of
the run, and their requests name that call as their parent. With these facts and the outcomes of the
calls, any node can repeat the program.
"""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from rookery.schemas.calls import RequestedCall
from rookery.schemas.envelope import Fact
from rookery.schemas.run import ExternalCallRecord
from rookery.schemas.scalars import Unsigned

__all__ = ["CODE_FACTS", "CodeFact"]


class Stepped(Fact, frozen=True, kw_only=True, tag="code.stepped.v1"):
    """A program that the run's model acts in waits for calls; the turn's machine knows the call of
    ``run_code`` alone."""

    run: str
    operation_id: str
    """Of that call."""
    number: Unsigned
    """Of the step in its program, from 1."""
    begun_at_ms: Unsigned
    """The start that the program sees."""
    calls: tuple[RequestedCall, ...] = ()
    """Those that are requested now."""
    op_refs: tuple[str, ...] = ()
    """The operations of its calls that are in flight."""
    barrier_ids: tuple[str, ...] = ()
    """Those of them that the program waits for."""
    timer_ms: Unsigned | UnsetType = UNSET
    """A timer of the program that may fire first."""
    given: tuple[str, ...] | UnsetType = UNSET
    """The operations it continued with after the step before, if not with all that it waited
    for."""
    passed_ms: tuple[Unsigned, ...] | UnsetType = UNSET
    """By how much its clock advanced after the step before, as in ``turn.tool_calls_resolved``."""


class Ended(Fact, frozen=True, kw_only=True, tag="code.ended.v1"):
    """A program that the run's model acts in has ended; its call ends with the next fact."""

    run: str
    operation_id: str
    number: Unsigned
    """Of its last step."""
    begun_at_ms: Unsigned
    given: tuple[str, ...] | UnsetType = UNSET
    passed_ms: tuple[Unsigned, ...] | UnsetType = UNSET
    kept: bool = False
    """Whether its changes to the session are valid; otherwise the session is as before it."""
    instructions: Unsigned = 0
    calls: tuple[ExternalCallRecord, ...] = ()
    """The calls that it has made."""


CodeFact = Stepped | Ended
CODE_FACTS = CodeFact
