"""Nodes in memory whose runs are executed by scripts, and the facts of such runs.

Kernel, deciders, executors and journal are the real ones; the driver is real, too, in the place of
a sandbox or a model. The request's ``code`` names the script.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from rookery.actors.admission.decider import AdmissionDecider
from rookery.actors.admission.executor import RunReplies
from rookery.actors.admission.in_flight import InFlightCounter
from rookery.actors.execution.driver import Finished, RunInput, Step, SyncCall
from rookery.actors.execution.executor import RunExecutor
from rookery.actors.execution.history import RunHistoryReader
from rookery.actors.execution.result_sender import ResultSender
from rookery.actors.hooks import NodeHooks
from rookery.actors.hooks.authoring import LocalHook
from rookery.actors.hooks.points import HookPoints
from rookery.actors.kernel.decider import Decider, FoldedFacts
from rookery.actors.kernel.executors.asks import AskActor, QueryHandler
from rookery.actors.kernel.runtime.kernel import Kernel
from rookery.actors.kernel.runtime.node import KernelSettings
from rookery.actors.kernel.runtime.ownership import NodeIdentity
from rookery.actors.messages import ActiveRunView, UnparkRun
from rookery.actors.sandbox.contract import Tool, ToolResult
from rookery.actors.sandbox.sessions.run_log import ResultBatch
from rookery.actors.session_snapshots.decider import SnapshotsDecider
from rookery.actors.tools.attempts.attempts import CallNotifier
from rookery.actors.tools.attempts.call_slots import CallSlots
from rookery.actors.tools.attempts.executor import CallExecutor
from rookery.actors.tools.attempts.waits import WaitExecutor
from rookery.actors.tools.calls.call_rules import CallRules
from rookery.actors.turns.decider import TurnsDecider
from rookery.actors.turns.state import ImmediateKind, SessionTurns
from rookery.bus.ports import Blobs
from rookery.schemas.calls import RunEnvironment
from rookery.schemas.codec import FactCodec, fact_tag
from rookery.schemas.envelope import HELD_BY, Command, Fact, fill_envelope
from rookery.schemas.facts.session import SESSION_FACTS, InputAccepted
from rookery.schemas.facts.turn import RUN_FACTS, Cancelled, Completed, Failed, Parked, Unparked
from rookery.schemas.machines.views import TurnView
from rookery.schemas.run import (
    ErrorObject,
    Language,
    RunOutput,
    RunRequest,
    RunResult,
    RunStatus,
    SessionLimits,
)
from tests.execution.driver_scripts import SCRIPTS, Pause, Script
from tests.kernel.world import SentRequest, World
from tests.tools.tool_fixtures import (
    CAPABILITIES,
    SURFACE,
    BackendHost,
    ToolBackend,
    ToolNode,
    node_tools,
)

__all__ = ["SESSION", "ScriptedWorld"]

SESSION = "s"
CLOSES = ("run_committed", "run_failed", "input_cancelled", "input_refused")
IMMEDIATE = {"append": ImmediateKind.APPEND, "context": ImmediateKind.CONTEXT}
CODECS: Mapping[str, FactCodec[Any]] = {
    "session": FactCodec(SESSION_FACTS),
    "turn": FactCodec(RUN_FACTS),
}
WALL_MS = 3_000

Told = list[Mapping[int, ToolResult]]


# --- the driver -----------------------------------------------------------------------------------


class ScriptedDriver:
    """Plays one script."""

    def __init__(
        self, memory: ScriptMemory, scripts: Mapping[str, Callable[[str], Script]] = SCRIPTS
    ) -> None:
        self._memory, self._scripts = memory, scripts
        self._stopped = asyncio.Event()
        self._session = ""

    async def begin(self, given: RunInput, call: SyncCall) -> Step:
        told: Told = [{one.number: one.answer for one in b.calls} for b in given.recorded]
        self._memory.inputs.append(given.request.inputs)
        return await self._play(given, told)

    async def resume_parked(
        self,
        given: RunInput,
        answers: Mapping[int, ToolResult],
        call: SyncCall,
        advance_ms: int = 0,
    ) -> Step:
        return await self._play(given, [*self._memory.told[given.session], answers])

    async def next_step(self, answers: Mapping[int, ToolResult], advance_ms: int = 0) -> Step:
        if advance_ms:
            return _ended(RunStatus.TIMEOUT, "TIMEOUT_WALL")
        self._memory.told[self._session].append(answers)
        return await self._come_to(self._script.send(answers))

    def output(self) -> RunOutput:
        return RunOutput()

    async def stop(self) -> RunResult | None:
        self._stopped.set()
        return None

    async def _play(self, given: RunInput, told: Told) -> Step:
        """Play the script as far as its results are known; its own pauses have passed."""
        self._session = given.session
        self._script = self._scripts[given.request.code](given.run_id)
        self._memory.told[self._session] = told
        said = next(self._script)
        for answers in told:
            while isinstance(said, Pause):
                said = self._script.send({})
            said = self._script.send(answers)
        return await self._come_to(said)

    async def _come_to(self, said: Step | Pause) -> Step:
        while isinstance(said, Pause):
            try:
                async with asyncio.timeout(said.ms / 1_000):
                    await self._stopped.wait()
            except TimeoutError:
                said = self._script.send({})
            else:
                return _ended(RunStatus.CANCELLED, "CANCELLED")
        return said

    _script: Script


def _ended(status: RunStatus, code: str) -> Finished:
    error = ErrorObject(code=code, message="the script was not played to its end")
    return Finished(RunResult.failed(status, error), kept=False)


class ScriptMemory:
    """One per node: the results that each run got. Sessions keep no state for the next run."""

    def __init__(self, reader: RunHistoryReader, blobs: Blobs) -> None:
        self._reader, self._blobs = reader, blobs
        self.told: dict[str, Told] = {}
        self.inputs: list[Mapping[str, Any]] = []
        """Of each execution of a program."""
        self.may_rest = asyncio.Event()
        self.may_rest.set()

    async def prepare(
        self, session: str, view: ActiveRunView, tools: Sequence[Tool]
    ) -> Sequence[ResultBatch]:
        if not view.steps:
            return ()
        runs = await self._reader.runs(session, view.generation, None)
        return [run.batches for run in runs if run.run_id == view.run_id][-1]

    async def restore_parked(
        self, session: str, view: ActiveRunView, tools: Sequence[Tool]
    ) -> None:
        data = await self._blobs.get(view.snapshot_blob)
        self.told[session] = msgspec.json.decode(data, type=list[dict[int, ToolResult]])

    async def require(self, offer: RunEnvironment) -> None:
        """Every node has all scripts."""

    async def park(
        self, session: str, view: ActiveRunView, *, is_repeatable: bool
    ) -> tuple[str, str]:
        await self.may_rest.wait()
        blob = await self._blobs.put(msgspec.json.encode(self.told[session]))
        await self.evict(session)
        return f"snap_{blob}", blob

    def on_unparked(self, image: str) -> None:
        """Images stay."""

    async def store_snapshot(self, session: str, offer: RunEnvironment) -> str:
        blob = await self._blobs.put(msgspec.json.encode(self.told[session]))
        return f"snap_{blob}"

    async def on_run_ended(
        self, session: str, view: ActiveRunView, result: RunResult, *, kept: bool
    ) -> None:
        await self.evict(session)

    async def evict(self, session: str) -> None:
        self.told.pop(session, None)


# --- the realm ------------------------------------------------------------------------------------


class CheckedTurns(TurnsDecider):
    """Asserts of every step that its facts fold to the state that comes with them, whatever the
    kernel fills in."""

    def decide(self, state: SessionTurns, command: Command[Any], *, now_ms: int) -> Sequence[Fact]:
        decided = super().decide(state, command, now_ms=now_ms)
        if isinstance(decided, FoldedFacts):
            folded = state
            for fact in map(msgspec.structs.replace, decided):
                fill_envelope(
                    fact,
                    id="turn.other.7",
                    at_ms=now_ms + 7,
                    session="other",
                    cause=("other",),
                    cause_digest="other",
                    source="other",
                    traceparent="",
                    by="other",
                )
                folded = self.evolve(folded, fact)
            assert folded == decided.state
        return decided


class ScriptedWorld(World):
    """Nodes that play scripts, and call the tools of one backend."""

    scripts: Mapping[str, Callable[[str], Script]] = SCRIPTS
    hooks: Sequence[LocalHook] = ()
    hook_points = HookPoints

    def __init__(self, *, threads: bool = False) -> None:
        super().__init__(threads=threads)
        self.backend, self.visible = ToolBackend(), node_tools(*CAPABILITIES)
        self.memory: ScriptMemory | None = None
        """The node that began last."""
        self.node_hooks = NodeHooks(self.hooks)
        self._decoded: dict[tuple[str, bytes], list[Any]] = {}
        """The facts of a family in a message: a wait for one reads the journal at each step."""

    def begin(self) -> Any:
        admission = AdmissionDecider(
            queued_max=100,
            in_flight_max=100,
            realm_load=InFlightCounter(),
            driven=True,
        )
        return self.start([admission, SnapshotsDecider(), *self.further_concerns()])

    def further_concerns(self) -> Sequence[Decider]:
        """Deciders beside those that execute runs."""
        return ()

    def queries(self, ask: AskActor) -> Mapping[str, QueryHandler]:
        """The queries of a node."""
        return {}

    def kernel(self, node: Any, concerns: Sequence[Decider], **settings: Any) -> Kernel:
        async def ask(*asked: Any) -> Any:
            return await node.kernel.ask(*asked)

        epoch = f"{node.name}.{next(self._numbers)}"
        places = CallSlots([tool.capability for tool in self.visible], node, self.now_ms)
        reader = RunHistoryReader(node.bus.journal, node.bus.blobs)
        results = RunReplies(node.bus.journal, node.bus.blobs, node.bus.request_endpoint)
        kernel = Kernel(
            node.bus,
            node,
            [
                *concerns,
                CheckedTurns(
                    self.offer,
                    call_rules=CallRules(self.visible, places, epoch),
                    pin_again=self.node_hooks.pin_again,
                ),
            ],
            KernelSettings(
                identity=NodeIdentity(node.name, epoch, b"", lambda presence: False),
                now_ms=self.now_ms,
                uptime_s=self.uptime_s,
                **settings,
            ),
            effect_handlers={
                **results.handlers,
                **ResultSender(results).handlers,
            },
            queries=self.queries(ask),
        )
        self._bind(node, kernel, reader, results, places, epoch)
        return kernel

    def _bind(
        self,
        node: ToolNode,
        kernel: Kernel,
        reader: RunHistoryReader,
        results: RunReplies,
        *rest: Any,
    ) -> tuple[CallNotifier, RunExecutor]:
        (places, epoch), board, bench = rest, CallNotifier(), BackendHost(self.backend)
        blobs = node.bus.blobs
        acting = CallExecutor(
            ask=kernel.ask,
            blobs=blobs,
            visible=self.visible,
            hosts={SURFACE: bench},
            places=places,
            board=board,
            epoch=epoch,
            now_ms=self.now_ms,
            acts_for=kernel.acts_for,
        )
        runner = RunExecutor(
            ask=kernel.ask,
            call_notifier=board,
            blobs=blobs,
            reader=reader,
            require_tools=lambda offer: None,
            wait_for_hooks=self.node_hooks.wait_for,
            hook_points=partial(self.hook_points, self.node_hooks, self.visible, self.now_ms),
            send_replies=node.bus.request_endpoint.reply,
            send_output=node.bus.send_output,
            **self.mind(reader, blobs, kernel.ask),
        )
        waits = WaitExecutor(ask=kernel.ask, timers=node.bus.timers, now_ms=self.now_ms)
        kernel.register_handlers({**acting.handlers, **waits.handlers, **runner.handlers})
        return board, runner

    def mind(self, reader: RunHistoryReader, blobs: Blobs, ask: AskActor) -> Mapping[str, Any]:
        """The driver of a node's runs, and its memory."""
        memory = self.memory = ScriptMemory(reader, blobs)
        return {
            "session_cache": memory,
            "driver": lambda: ScriptedDriver(memory, self.scripts),
            "eviction_candidates": lambda busy: (),
        }

    def offer(
        self, request: RunRequest, session_limits: Any, session: str
    ) -> RunEnvironment | ImmediateKind:
        """Other code is stored in the session as its value."""
        if request.code in IMMEDIATE:
            return IMMEDIATE[request.code]
        environment = RunEnvironment(
            language=Language.PYTHON,
            build="scripts",
            seed="",
            limits=SessionLimits(wall_ms=WALL_MS),
            tools=tuple(tool.available for tool in self.visible),
        )
        return self.node_hooks.pin(environment)

    # --- what clients do --------------------------------------------------------------------------

    def play(self, script: str) -> SentRequest:
        """Submit a run of this script."""
        return self.ask("run", SESSION, code=script)

    def meanwhile(self, number: int, happens: Callable[[], object]) -> Callable[[], object]:
        """Call ``happens`` as soon as the session has this many messages, before any actor gets the
        last one; the returned function calls that off."""

        def grown() -> None:
            if len(self.stored("", SESSION)) == number:
                call_off()
                happens()

        def call_off() -> None:
            if grown in journal.on_grown:
                journal.on_grown.remove(grown)

        journal = self.server.realm("default").log
        journal.on_grown.append(grown)
        return call_off

    def kill_after(self, number: int) -> None:
        """Kill the node at this message, if there is one; another node replaces it."""
        weather, rest = self.nodes[-1].weather, self.rest
        call_off = self.meanwhile(number, lambda: setattr(weather, "up", False))
        self.until(lambda: not weather.up or self.closes or self.rest not in (None, rest))
        self.settle()
        call_off()
        if not weather.up:
            self.nodes[-1].crash()
            self.begin()

    def resume(self, hook_id: str) -> None:
        """Continue the run that the hook has interrupted."""
        command = UnparkRun(run_id=self.runs[-1], hook=hook_id)
        node = self.nodes[-1]
        self.run(node.kernel.ask("turn", SESSION, command, ActiveRunView))

    def until_over(self, runs: int = 1) -> None:
        """Wait until this many runs have ended, and their session has the ends."""
        self.until(lambda: len(self.closes) == runs)
        self.settle()

    # --- what stands ------------------------------------------------------------------------------

    def recorded(self, family: str = "turn") -> list[Any]:
        """The facts of the session."""
        messages = self.stored(HELD_BY.get(family, family), SESSION)
        return [fact for one in messages for fact in self._facts_in(one.body, family)]

    def _facts_in(self, body: bytes, family: str) -> list[Any]:
        if (facts := self._decoded.get((family, body))) is None:
            everything = CODECS[HELD_BY.get(family, family)].decode(body)
            facts = [f for f in everything if fact_tag(type(f)).startswith(f"{family}.")]
            self._decoded[family, body] = facts
        return facts

    def kinds(self, family: str = "turn") -> list[str]:
        tags = [str(fact.__struct_config__.tag) for fact in self.recorded(family)]
        return [tag.removeprefix(f"{family}.").removesuffix(".v1") for tag in tags]

    def turn(self) -> TurnView:
        """The turn's state from its actor, as soon as there is one."""
        while (asked := self.request("turns", SESSION, input="snapshot")).code:
            self.pass_s(1)
        return msgspec.json.decode(asked.answers[-1].body, type=TurnView)

    @property
    def rest(self) -> Parked | None:
        """Park the run, which waits for this."""
        rests = [fact for fact in self.recorded() if isinstance(fact, Parked | Unparked)]
        return rests[-1] if rests and isinstance(rests[-1], Parked) else None

    @property
    def runs(self) -> list[str]:
        return [f.run for f in self.recorded("session") if isinstance(f, InputAccepted)]

    @property
    def ends(self) -> list[str]:
        """The ends of all started runs."""
        return [f.run for f in self.recorded() if isinstance(f, Completed | Failed | Cancelled)]

    @property
    def closes(self) -> list[str]:
        """The session's facts about these ends."""
        return [kind for kind in self.kinds("session") if kind in CLOSES]
