"""A session decided as the kernel decides it: decide, stamp, encode, decode, fold.

Every step is checked against the invariants of admission.
"""

from __future__ import annotations

from copy import deepcopy
from functools import reduce
from typing import Any

from msgspec.structs import replace

from rookery.actors.admission.commands import AdmissionQuotas, accept, cancel, handle_input
from rookery.actors.admission.effects import effects
from rookery.actors.admission.evolve import evolve
from rookery.actors.admission.lifecycle_machine import HOST_INVARIANTS
from rookery.actors.admission.state import (
    NO_TURN,
    Admission,
    EndedInput,
    ObservedTurn,
    decode_state,
    encode_state,
)
from rookery.actors.kernel.machines.machine import HostPhase
from rookery.schemas.codec import FactCodec, encode_facts
from rookery.schemas.commands import Cancel, HandleInput
from rookery.schemas.envelope import Command, Mode, fill_envelope
from rookery.schemas.facts import session as facts
from rookery.schemas.run import RunRequest, SessionMeta

KEY = "s"
T0 = 1_800_000_000_000
WIDE = AdmissionQuotas(queued_max=100, in_flight_max=1_000, in_flight=0)
STARTS = (facts.RunPrepared, facts.QueuedRunDrained)
ENDS = (
    facts.RunCommitted,
    facts.RunFailed,
    facts.RunRolledBack,
    facts.InputCancelled,
    facts.InputRefused,
)
CLOSES = (facts.Destroyed, facts.ExecutorExited, facts.Unregistered)
_codec: FactCodec[facts.SessionFact] = FactCodec(facts.SESSION_FACTS)


def fresh() -> Admission:
    return Admission(meta=SessionMeta(id=KEY))


class SessionHarness:
    """One session, its whole history, and the replies that were sent."""

    def __init__(self) -> None:
        self.state = fresh()
        self.history: list[facts.SessionFact] = []
        self.endings: list[EndedInput] = []
        """All ended inputs; the state forgets them after a day."""
        self.answers: list[tuple[str, str]] = []
        self.commands: list[Command[RunRequest]] = []
        self.now_ms = T0
        self._count = 0

    # --- asking ---------------------------------------------------------------------------------

    def run(
        self,
        mode: Mode = Mode.QUEUE,
        *,
        reply_to: str = "",
        quotas: AdmissionQuotas = WIDE,
        **request: Any,
    ) -> list[facts.SessionFact]:
        command = self._command("run", RunRequest(**request), mode=mode, reply_to=reply_to)
        told = self.send(command, quotas=quotas)
        self.commands.append(command)
        return told

    def repeat(self, command: Command[RunRequest], reply_to: str = "") -> list[facts.SessionFact]:
        again = Command(
            verb=command.verb, key=KEY, id=command.id, body=command.body, mode=command.mode,
            reply_to=reply_to, is_duplicate=True,
        )  # fmt: skip
        return self.send(again, quotas=AdmissionQuotas(0, 0, 0))

    def cancel(self, run_id: str, reason: str = "") -> list[facts.SessionFact]:
        return self.send(self._command("cancel", Cancel(run_id=run_id, reason=reason)))

    def handle(
        self, on: str, turn: ObservedTurn = NO_TURN, **params: Any
    ) -> list[facts.SessionFact]:
        body = HandleInput(input=on, params=params)
        observed = replace(turn, run_id=self.state.host.current_run_id or "")
        self.state = replace(self.state, turn=observed)
        return self.send(self._command("admission", body))

    def commit(self) -> list[facts.SessionFact]:
        """The current run completes."""
        current = self.state.current
        input_id = current.input_id if current is not None else "by-hand"
        return self.handle("commit", input_id=input_id, run_id=self.state.host.current_run_id)

    def send(self, command: Command[Any], **seen: Any) -> list[facts.SessionFact]:
        """Decide twice with the same result, then apply the facts as the kernel does."""
        decide: Any = {"run": accept, "cancel": cancel, "admission": handle_input}[command.verb]
        before = deepcopy(encode_state(self.state))
        decided = decide(self.state, command, now_ms=self.now_ms, **seen)
        assert decide(self.state, command, now_ms=self.now_ms, **seen) == decided
        assert encode_state(self.state) == before
        for number, fact in enumerate(decided, len(self.history) + 1):
            fill_envelope(
                fact, id=f"session.{KEY}.{number}", at_ms=self.now_ms, session=KEY,
                cause=(command.id,), cause_digest="", source="admission@test", traceparent="",
            )  # fmt: skip
        stored = _codec.decode(encode_facts(decided))
        assert stored == decided
        for fact in stored:
            self.fold(fact)
        self.check()
        return stored

    def fold(self, fact: facts.SessionFact) -> None:
        self.state = evolve(self.state, fact)
        self.history.append(fact)
        for ended in list(self.state.ended)[-1:]:
            if not self.endings or self.endings[-1] is not ended:
                self.endings.append(ended)
        self.answers += [(a.reply_to, a.receipt.state) for a in effects(self.state, fact)]

    def _command(self, verb: str, body: Any, **more: Any) -> Command[Any]:
        self._count += 1
        return Command(verb=verb, key=KEY, id=f"command-{self._count}", body=body, **more)

    # --- what always holds ----------------------------------------------------------------------

    def check(self) -> None:
        state = self.state
        for holds in HOST_INVARIANTS:
            assert holds(state.host), holds.__name__
        assert reduce(evolve, self.history, fresh()) == replace(state, turn=NO_TURN)
        assert decode_state(encode_state(state)) == state
        self._check_turns()
        self._check_ends()
        waits = [owed for owed in state.queue if owed.run_id]
        if state.host.phase in (HostPhase.IDLE, HostPhase.ATTACHED):
            assert not any(owed.waking for owed in waits), "a wake-up was lost"
        if state.host.phase in (HostPhase.RETIRED, HostPhase.STOPPED, HostPhase.DESTROYED):
            assert not waits
            assert state.current is None

    def _check_turns(self) -> None:
        """A run starts only after the previous one has lost the session."""
        active = None
        for fact in self.history:
            if isinstance(fact, STARTS):
                assert active in (None, fact.run)
                active = fact.run
            elif fact.run == active if isinstance(fact, ENDS) else isinstance(fact, CLOSES):
                active = None

    def _check_ends(self) -> None:
        """admitted = ended + pending, and no input ends twice."""
        admitted = [fact.input_id for fact in self.history if isinstance(fact, facts.InputAccepted)]
        ended = [found.input_id for found in self.endings]
        assert len(set(ended)) == len(ended)
        owed = [*self.state.queue, *([self.state.current] if self.state.current else [])]
        assert sorted(set(admitted)) == sorted([*ended, *(found.input_id for found in owed)])
        assert self.state.pending_count == len(owed)

    # --- looking --------------------------------------------------------------------------------

    def ended(self) -> dict[str, str]:
        """State by run id."""
        return {found.run_id: found.state for found in self.endings}

    def of(self, command: Command[Any]) -> Any:
        found = self.state.input_of_command(command.id)
        assert found is not None
        return found

    def how(self, command: Command[Any]) -> str:
        return self.state.receipt(self.of(command)).state

    def order(self) -> list[str]:
        """Command ids in the order their runs first started."""
        brought = {
            fact.run: fact.cause[0]
            for fact in self.history
            if isinstance(fact, facts.InputAccepted)
        }
        starts = [fact.run for fact in self.history if isinstance(fact, STARTS)]
        return [brought[run] for run in dict.fromkeys(starts) if run in brought]

    def kinds(self, told: list[facts.SessionFact]) -> list[str]:
        return [type(fact).__name__ for fact in told]
