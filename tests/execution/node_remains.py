"""The journals that crashed, cut off or damaged nodes leave, and a fresh node that reads them.

Real nodes play a scenario once, and the test records its journal. Any part of the journal that a
crash could leave is then loaded by a fresh node whose watermark is beyond all of it, so that no
takeover repeats a reaction. That is the worst case of a crash or a cut, and worse than most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import count
from typing import Any, Final, NamedTuple

from rookery.actors.approvals.decider import ApprovalsDecider
from rookery.actors.approvals.dispatchers.dispatchers import InboxDispatcher
from rookery.actors.approvals.executor import ApprovalExecutor
from rookery.actors.approvals.state import ApprovalSettings
from rookery.actors.execution.driver import Finished
from rookery.actors.execution.executor import RunExecutor
from rookery.actors.execution.history import RunHistoryReader
from rookery.actors.execution.queries.snapshots import SessionDestroyer
from rookery.actors.kernel.decider import Decider
from rookery.actors.kernel.executors.asks import AskActor, QueryHandler
from rookery.actors.kernel.runtime.kernel import Kernel
from rookery.actors.tools.attempts.attempts import CallNotifier
from rookery.bus.ports import Appended, AppendRequest, StoredMessage
from rookery.schemas.codec import FactCodec, fact_tag
from rookery.schemas.envelope import HELD_BY
from rookery.schemas.errors import CodedError
from rookery.schemas.facts.approval import APPROVAL_FACTS, Requested
from rookery.schemas.facts.run_progress import TURN_ENDS
from rookery.schemas.facts.session import InputCancelled, InputRefused, RunCommitted, RunFailed
from rookery.schemas.facts.tool import TOOL_FACTS, RecoveryRequired
from rookery.schemas.run import RunResult
from tests.execution.driver_scripts import SCRIPTS, Script, wants
from tests.execution.scripted_driver import CODECS, SESSION, ScriptedWorld

__all__ = ["STORIES", "Left", "LeftWorld", "left_by"]

ALL_CODECS: Final = {
    **CODECS,
    "approval": FactCodec(APPROVAL_FACTS),
    "tool": FactCodec(TOOL_FACTS),
}
CLOSING: Final = (*TURN_ENDS, RunCommitted, RunFailed, InputCancelled, InputRefused)
WITHOUT_NAMES: Final = 1
"""The saved watermark below which no work is left."""
LATER_S: Final = 60.0
"""After the scenario: no claim is valid, and the deadline of every call has passed."""


def ask_first(run: str) -> Script:
    """A call that needs an approver."""
    del run
    results = yield wants(1, tool="guarded")
    yield Finished(RunResult(result=results[1].value), kept=True)


class LeftWorld(ScriptedWorld):
    """Scripted nodes with approvals, whose sessions can be destroyed."""

    scripts: Mapping[str, Callable[[str], Script]] = {**SCRIPTS, "ask_first": ask_first}

    def further_concerns(self) -> Sequence[Decider]:
        return (ApprovalsDecider(ApprovalSettings()),)

    def queries(self, ask: AskActor) -> Mapping[str, QueryHandler]:
        return {"destroy": SessionDestroyer(self._outside.journal, ask).reply}

    def _bind(
        self, node: Any, kernel: Kernel, reader: RunHistoryReader, *rest: Any
    ) -> tuple[CallNotifier, RunExecutor]:
        board, runner = super()._bind(node, kernel, reader, *rest)
        asking = ApprovalExecutor(
            ask=kernel.ask,
            timers=node.bus.timers,
            dispatchers={"inbox": InboxDispatcher()},
            notify_call=board.notify,
            now_ms=self.now_ms,
            can_continue=runner.can_continue,
            resume_in_turn=runner.resumptions.admit,
        )
        kernel.register_handlers(asking.handlers)
        return board, runner

    # --- what is laid before a fresh node ---------------------------------------------------------

    def lay(self, messages: Sequence[StoredMessage], blobs: Mapping[str, bytes]) -> None:
        """Append these messages; no watermark says that they need work."""
        realm = self.server.realm("default")
        realm.blobs.stored |= blobs
        for one in messages:
            before = self.stored(*one.entity)
            append = AppendRequest(
                entity=one.entity,
                expected=before[-1].sequence if before else 0,
                message_id=one.message_id,
                body=one.body,
                chain=one.chain,
            )
            assert isinstance(realm.log._store(append), Appended)

    def take_up(self, left: Left, damaged: Mapping[int, bytes] | None = None) -> None:
        """Start a node with a new name and epoch. ``damaged``: the new content of some messages."""
        self.lay(left.messages, left.blobs)
        for sequence, body in (damaged or {}).items():
            self.forge(sequence, body)
        self.keep_horizon(WITHOUT_NAMES)
        self.sleep_s(LATER_S)
        self._numbers = count(1_000)  # No client repeats an id or listens on an old subject.
        self.nodes += [None] * 50  # type: ignore[list-item]  # A new name.
        self.begin()
        del self.nodes[:50]

    def allow_what_waits(self) -> None:
        """Decide as approver and operator: every open approval, and every call with an unknown
        outcome."""
        for fact in self.of_family("approval"):
            if isinstance(fact, Requested):
                self.ask(
                    "decide",
                    SESSION,
                    approval_id=fact.approval_id,
                    decision="approved",
                    actor="ann",
                    request_digest=fact.request_digest,
                    answered_at_ms=self.now_ms(),
                )
        for fact in self.of_family("tool"):
            if isinstance(fact, RecoveryRequired):
                operation = fact.operation_id
                word = {"run_id": fact.run, "operation_id": operation, "retry": True, "now": True}
                self.ask("resolve", SESSION, **word)

    @property
    def open_runs(self) -> list[str]:
        """The runs without an end."""
        facts = [*self.of_family("session"), *self.of_family("turn")]
        over = {fact.run for fact in facts if isinstance(fact, CLOSING)}
        return [run_id for run_id in self.runs if run_id not in over]

    def of_family(self, family: str) -> list[Any]:
        """The session's facts of this family that can be decoded."""
        found: list[Any] = []
        for entity in dict.fromkeys((family, HELD_BY.get(family, family))):
            for one in self.stored(entity, SESSION):
                with suppress(CodedError):
                    found += ALL_CODECS[entity].decode(one.body)
        return [fact for fact in found if fact_tag(type(fact)).startswith(f"{family}.")]


# --- stories --------------------------------------------------------------------------------------


class Left(NamedTuple):
    """A part of a scenario's journal that a crash may leave."""

    name: str
    messages: tuple[StoredMessage, ...]
    blobs: Mapping[str, bytes]


def plain(world: LeftWorld) -> None:
    """Two runs, one after the other, with calls."""
    world.play("talk")
    world.until_over()
    world.play("append")
    world.until_over(2)


def queued(world: LeftWorld) -> None:
    """A second run waits for the first, and a third is withdrawn."""
    world.backend.hold = True
    for script in ("send_twice", "talk", "talk"):
        world.play(script)
    world.until(lambda: len(world.runs) == 3)
    world.ask("cancel", SESSION, run_id=world.runs[2])
    world.until(lambda: world.closes)
    world.backend.hold = False
    world.until_over(3)


def failing(world: LeftWorld) -> None:
    """A run whose time limit ends during a call."""
    world.backend.hold = True
    world.play("call_in_vain")
    world.until_over()


def cancelled(world: LeftWorld) -> None:
    """A run is cancelled during a call, and another follows."""
    world.backend.hold = True
    world.play("send_twice")
    world.until(lambda: "intent_recorded" in world.kinds("tool"))
    world.ask("cancel", SESSION, run_id=world.runs[0], now=True)
    world.until_over()
    world.backend.hold = False
    world.play("context")
    world.until_over(2)


def recovering(world: LeftWorld) -> None:
    """A node dies in a call that may not be repeated; an operator lets it be tried again."""
    world.backend.hold = True
    world.play("send_twice")
    world.until(lambda: "intent_recorded" in world.kinds("tool"))
    world.nodes[-1].crash()
    world.backend.hold = False
    world.begin()
    world.until(lambda: world.rest)
    world.settle()
    world.allow_what_waits()
    world.until_over()


def approved(world: LeftWorld) -> None:
    """A run is parked for an approval, is approved, and ends."""
    world.play("ask_first")
    world.until(lambda: world.rest)
    world.settle()
    world.allow_what_waits()
    world.until_over()


def cancelled_at_rest(world: LeftWorld) -> None:
    """A run that is parked for an approval is cancelled."""
    world.play("ask_first")
    world.until(lambda: world.rest)
    world.settle()
    world.ask("cancel", SESSION, run_id=world.runs[0], now=True)
    world.until_over()


STORIES: Final = (
    plain, queued, failing, cancelled, recovering, approved, cancelled_at_rest,
)  # fmt: skip


@cache
def journal_of(
    scenario: Callable[[LeftWorld], None],
) -> tuple[tuple[StoredMessage, ...], Mapping[str, bytes]]:
    """The whole journal of a scenario, and its blobs."""
    with LeftWorld() as world:
        world.begin()
        scenario(world)
        world.settle()
        blobs = dict(world.server.realm("default").blobs.stored)
        return tuple(world.stored("", SESSION)), blobs


def left_by(scenario: Callable[[LeftWorld], None]) -> Iterator[Left]:
    """Every prefix of the journal; and every prefix without one of its messages, unless a later one
    depends on it."""
    messages, blobs = journal_of(scenario)
    for end in range(1, len(messages) + 1):
        yield Left(f"{scenario.__name__} {end}", messages[:end], blobs)
    for place, missing in enumerate(messages):
        beside = tuple(_beside(missing, messages[place + 1 :]))
        if beside:
            name = f"{scenario.__name__} without {place + 1} ({missing.entity.family})"
            yield Left(name, (*messages[:place], *beside), blobs)


def _beside(missing: StoredMessage, later: Sequence[StoredMessage]) -> Iterator[StoredMessage]:
    """The messages that do not depend on the missing one, up to the first that does. A node's own
    decision depends on all that it knew."""
    facts = {fact.id for fact in _facts(missing)}
    for one in later:
        causes = [cause for fact in _facts(one) for cause in fact.cause]
        follows = any(
            cause.startswith("inside/") or cause.rpartition("/")[0] in facts for cause in causes
        )
        if one.entity == missing.entity or follows:
            return
        yield one


def _facts(stored: StoredMessage) -> list[Any]:
    return ALL_CODECS[stored.entity.family].decode(stored.body)
