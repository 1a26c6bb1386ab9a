"""The metrics port: what the kernel, the deciders and the executors report about themselves.

The kernel reports every committed fact and every performed effect, so each decider and executor
is measured without doing anything for it. Executors report only what no fact says: durations
below a millisecond and sizes. The counters themselves are in ``ops/metrics.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from rookery.schemas.envelope import Fact

__all__ = ["NO_METRICS", "KernelMetrics", "NoMetrics"]


class KernelMetrics(Protocol):
    """Called on the bus's loop; must be quick and must not raise.

    Names become label values: verbs, families, tools of the node's catalogue, classes of effects;
    never an id."""

    def command(self, verb: str, outcome: str, seconds: float) -> None:
        """A command was answered: ``committed``, ``unchanged``, ``repeated``, ``refused``, or
        ``overloaded`` if the in-flight limit was reached."""

    def committed(self, family: str, messages: int, facts: int, seconds: float) -> None:
        """The journal acknowledged messages of a family, ``seconds`` after they were decided."""

    def facts_committed(self, facts: Sequence[Fact]) -> None:
        """The facts of one commit; called once per commit."""

    def conflict(self, family: str) -> None:
        """An append conflicted with another writer and is decided again."""

    def quarantined(self, verb: str) -> None:
        """A command failed three times in its actor and became a dead letter."""

    def history_broken(self, family: str, code: str) -> None:
        """The history of an entity was read and cannot be folded."""

    def restarted(self, actor: str) -> None:
        """An actor failed and restarted from the journal."""

    def effect(self, name: str, outcome: str, seconds: float) -> None:
        """A handler returned: ``done``, ``retried``, ``failed``, ``not_executable`` on this node,
        ``unowned`` if the key has another owner, or ``cancelled``."""

    def tool_call(self, tool: str, surface: str, outcome: str, seconds: float) -> None:
        """An attempt of a call ended: ``completed``, ``failed``, ``timed_out``, ``unknown``, or
        ``not_called``."""

    def sandbox_step(self, language: str, seconds: float) -> None:
        """A program took one step in the sandbox; without the time of its synchronous calls."""

    def snapshot_stored(self, size_bytes: int) -> None:
        """The memory of a session was stored."""

    def refresh_begun(self, provider: str) -> None:
        """A provider is asked for a credential; by its kind, as are the reports below."""

    def refresh_ended(self, provider: str, outcome: str, seconds: float) -> None:
        """A provider answered: ``renewed``, ``try_later`` or ``login_needed``."""

    def login(self, provider: str, outcome: str) -> None:
        """A login ``begun`` by a person, or its end: ``completed`` or ``failed``."""

    def credential_awaited(self, provider: str, seconds: float) -> None:
        """A call that waited for a credential has one."""

    def envelope_refused(self, code: str) -> None:
        """An envelope was refused by this code, of which no fact says anything."""

    def hook_invoked(self, hook: str, point: str, status: str, mode: str, seconds: float) -> None:
        """A hook was invoked. Its id is an operator's word, not one of a run."""


class NoMetrics:
    """Discards every report."""

    def command(self, verb: str, outcome: str, seconds: float) -> None: ...

    def committed(self, family: str, messages: int, facts: int, seconds: float) -> None: ...

    def facts_committed(self, facts: Sequence[Fact]) -> None: ...

    def conflict(self, family: str) -> None: ...

    def quarantined(self, verb: str) -> None: ...

    def history_broken(self, family: str, code: str) -> None: ...

    def restarted(self, actor: str) -> None: ...

    def effect(self, name: str, outcome: str, seconds: float) -> None: ...

    def tool_call(self, tool: str, surface: str, outcome: str, seconds: float) -> None: ...

    def sandbox_step(self, language: str, seconds: float) -> None: ...

    def snapshot_stored(self, size_bytes: int) -> None: ...

    def refresh_begun(self, provider: str) -> None: ...

    def refresh_ended(self, provider: str, outcome: str, seconds: float) -> None: ...

    def login(self, provider: str, outcome: str) -> None: ...

    def credential_awaited(self, provider: str, seconds: float) -> None: ...

    def hook_invoked(
        self, hook: str, point: str, status: str, mode: str, seconds: float
    ) -> None: ...

    def envelope_refused(self, code: str) -> None: ...


NO_METRICS: Final = NoMetrics()
