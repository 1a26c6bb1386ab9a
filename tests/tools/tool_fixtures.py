"""A tool backend outside every node, and a realm in memory whose nodes call it.

The kernel, the decider, the executor and the journal are the real ones. ``CallerDecider`` requests
calls as a turn does. ``ToolBackend`` counts the executions, and no crash of a node reaches it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, cast

import msgspec

from rookery.actors.credentials import NO_CREDENTIALS, CredentialSource
from rookery.actors.kernel.decider import Decider, Effect
from rookery.actors.kernel.runtime.kernel import Kernel
from rookery.actors.kernel.runtime.node import KernelSettings
from rookery.actors.kernel.runtime.ownership import NodeIdentity
from rookery.actors.messages import (
    ActiveRunQuery,
    ActiveRunView,
    CallProgress,
    CallsQuery,
    CallsView,
)
from rookery.actors.tools.attempts.attempts import CallNotifier
from rookery.actors.tools.attempts.call_slots import CallSlots
from rookery.actors.tools.attempts.executor import CallExecutor
from rookery.actors.tools.attempts.waits import WaitExecutor
from rookery.actors.tools.authoring.registry import ToolCallContext, ToolRegistry
from rookery.actors.tools.builtin.sleep import built_in_tools
from rookery.actors.tools.calls.call_rules import CallRules
from rookery.actors.tools.catalogue.catalogue import CatalogueTool, ToolCatalogue
from rookery.actors.tools.evolve import evolve_calls
from rookery.actors.tools.hosts.host import (
    NotCalled,
    OutcomeUnknown,
    PastAttempt,
    TaskCreated,
    ToolHost,
    always_allowed,
)
from rookery.actors.tools.validation.capability_checks import fault
from rookery.actors.turns.decider import TurnsDecider
from rookery.actors.turns.run_calls import CALL_COMMANDS, RunCalls
from rookery.actors.turns.state import SessionTurns
from rookery.schemas.calls import (
    ApprovalMode,
    CallArguments,
    CallOutcome,
    Capability,
    CapabilityLimits,
    RequestedCall,
)
from rookery.schemas.codec import FactCodec
from rookery.schemas.commands import COMMANDS
from rookery.schemas.digest import digest_bytes, digest_json
from rookery.schemas.envelope import Command, Fact
from rookery.schemas.facts import turn
from rookery.schemas.facts.tool import CallFact
from tests.kernel.tally import SmallDecider
from tests.kernel.world import Node, World, called

SURFACE = "outside"
TWO_NUMBERS = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}


def capability(name: str, *, idempotent: bool = True, **more: Any) -> Capability:
    limits = {name: more.pop(name) for name in CapabilityLimits.__struct_fields__ if name in more}
    return Capability(
        name=name,
        description="",
        input_schema=more.pop("input_schema", TWO_NUMBERS),
        idempotent=idempotent,
        limits=CapabilityLimits(**limits),
        **more,
    )


CAPABILITIES = (
    capability("fetch"),
    capability("send", idempotent=False),
    capability("long", idempotent=False, timeout_ms=600_000),
    capability("single", concurrency=1),
    capability("rare", rate_per_min=1),
    capability("hasty", timeout_ms=200),
    capability("small", max_request_bytes=40, input_schema={"type": "array"}),
    capability("texts", input_schema={"type": "array", "items": {"type": "string"}}),
    capability("guarded", approval_policy=ApprovalMode.MANUAL),
)


def tools(*capabilities: Capability) -> ToolCatalogue:
    return ToolCatalogue(_tool(msgspec.json.encode(one)) for one in capabilities)


def node_tools(*capabilities: Capability) -> ToolCatalogue:
    """These and the built-in ones, as a node offers them."""
    return ToolCatalogue([*tools(*capabilities), *built_in_tools(ToolRegistry())])


@cache
def _tool(capability: bytes) -> CatalogueTool:
    """It never changes, and checking its schemas is half the time of a world that begins anew."""
    return CatalogueTool.of(
        SURFACE, msgspec.json.decode(capability, type=Capability), awaited=False
    )


def call(
    number: int, name: str, *args: Any, run: str = "run-1", blob: str = "", **kwargs: Any
) -> RequestedCall:
    """A call as a program makes it."""
    arguments = CallArguments(args=list(args), kwargs=kwargs)
    asked = RequestedCall(
        operation_id=operation(number, run), number=number, name=name, digest=digest_json(arguments)
    )
    if blob:
        return msgspec.structs.replace(asked, arguments_blob=blob)
    return msgspec.structs.replace(asked, arguments=arguments)


def operation(number: int, run: str = "run-1") -> str:
    return f"{run}-{number}"


# --- requests ------------------------------------------------------------------------------------


class RequestCalls(msgspec.Struct, frozen=True, kw_only=True):
    run: str = "run-1"
    calls: tuple[RequestedCall, ...] = ()


class CallerTurns(SessionTurns, frozen=True, kw_only=True):
    """By run, its calls; of one that has ended, none."""

    requested: dict[str, tuple[RequestedCall, ...]] = msgspec.field(default_factory=dict)


class CallerDecider(SmallDecider):
    """A turn without a machine: ``request`` requests calls, ``retain`` drops all others, ``end``
    ends their run. Its calls are those of the product."""

    family = "turn"
    initial_state = CallerTurns()
    verbs: Mapping[str, type[msgspec.Struct]] = {
        "request": RequestCalls,
        "retain": RequestCalls,
        "end": RequestCalls,
        "resolve": COMMANDS["resolve"],
        "wait_ended": COMMANDS["wait_ended"],
    }
    codec: FactCodec[Any] = FactCodec(turn.RUN_FACTS)
    reacts_to, reaction_types = frozenset({"approval"}), TurnsDecider.reaction_types
    effect_types = TurnsDecider.effect_types
    dump, load = Decider.dump, Decider.load

    def __init__(self, rules: CallRules) -> None:
        self.calls = RunCalls(cast("TurnsDecider", self), rules)

    def decide(self, state: Any, command: Command[Any], *, now_ms: int) -> Sequence[Fact]:
        if isinstance(command.body, CALL_COMMANDS):
            return self.calls.decide(state, command.key, command, now_ms=now_ms)
        if not isinstance(command.body, RequestCalls):
            return []
        run, calls = command.body.run, command.body.calls
        operations = tuple(one.operation_id for one in calls)
        fact: Fact = turn.ToolCallsReturned(
            run=run, generation=1, tool_count=len(calls), calls=calls
        )
        if command.verb == "end":
            fact = turn.Cancelled(run=run, generation=1)
        elif command.verb == "retain":
            fact = turn.OpsRegistered(
                run=run, generation=1, op_refs=operations, barrier_ids=operations
            )
        return self.calls.follow(state, command.key, [fact], now_ms=now_ms).facts

    def evolve(self, state: Any, fact: Any) -> Any:
        if isinstance(fact, CallFact):
            calls = evolve_calls(state.calls, fact)
            return msgspec.structs.replace(state, calls=calls)
        wanted = state.requested.get(fact.run, ())
        match fact:
            case turn.ToolCallsReturned():
                wanted = (*wanted, *fact.calls)
            case turn.OpsRegistered(op_refs=kept):
                wanted = tuple(one for one in wanted if one.operation_id in kept)
            case _:
                wanted = ()
        return msgspec.structs.replace(state, requested=state.requested | {fact.run: wanted})

    def reply(self, state: Any, command: Command[Any], facts: Sequence[Fact]) -> Any:
        if isinstance(command.body, (CallsQuery, *CALL_COMMANDS)):
            return self.calls.reply(state, command, facts)
        run = command.body.run_id if isinstance(command.body, ActiveRunQuery) else ""
        return ActiveRunView(run_id=run, calls=state.requested.get(run, ()))

    def effects(self, state: Any, fact: Fact) -> Sequence[Effect]:
        return self.calls.effects(state, fact)

    def pending_effects(self, state: Any, key: str) -> Sequence[Effect]:
        return self.calls.pending_effects(state, key)

    def on_state(self, key: str, state: Any) -> None:
        self.calls.release_slots(key, state)


# --- what is called -------------------------------------------------------------------------------


class ToolBackend:
    """What the tools act on; it outlives every node."""

    def __init__(self) -> None:
        self.executions: Counter[str] = Counter()
        """By idempotency key."""
        self.contexts: list[ToolCallContext] = []
        self.hold = False
        """A called tool does not return."""
        self.lost = False
        """The outcome of every call is unknown."""
        self.makes_tasks = False
        """Every call goes on as a task, which ends when nothing holds it."""
        self.task_left_ms = 0
        """How long the surface lets a task take; 0: as long as its call."""
        self.followed_ms: list[int] = []
        """How long each task that was followed might still take."""
        self.running: Counter[str] = Counter()
        self.running_max: Counter[str] = Counter()
        self.outcome = CallOutcome(value="done")
        self.refused: set[str] = set()
        """Credentials that it accepts no more."""

    @contextlib.contextmanager
    def at_work(self, ctx: ToolCallContext) -> Iterator[None]:
        self.executions[ctx.idempotency_key] += 1
        self.contexts.append(ctx)
        self.running[ctx.name] += 1
        self.running_max[ctx.name] = max(self.running_max[ctx.name], self.running[ctx.name])
        try:
            yield
        finally:
            self.running[ctx.name] -= 1


class BackendHost:
    """One node's tool host, which calls the backend."""

    surface = SURFACE

    def __init__(self, backend: ToolBackend) -> None:
        self._backend = backend
        self.cancelled: list[str] = []

    async def wait_ready(self, name: str) -> None:
        """The backend is always ready."""

    async def call(
        self, ctx: ToolCallContext, timeout_ms: int, may_act: Callable[[], bool] = always_allowed
    ) -> CallOutcome:
        if not may_act():
            raise NotCalled
        if self._backend.makes_tasks:
            with self._backend.at_work(ctx):
                raise TaskCreated(f"task of {ctx.call_id}", self._backend.task_left_ms)
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                with self._backend.at_work(ctx):
                    while self._backend.hold and ctx.call_id not in self.cancelled:
                        await asyncio.sleep(0.01)
        except TimeoutError:
            return CallOutcome(error=fault("TIMEOUT_TOOL", "too slow"))
        if ctx.credential is not None and ctx.credential.value in self._backend.refused:
            ctx.credential.reject()
        if self._backend.lost:
            raise OutcomeUnknown("the line is dead")
        if ctx.call_id in self.cancelled:
            return CallOutcome(error=fault("CANCELLED", "not wanted"))
        return self._backend.outcome

    def call_quickly(self, ctx: ToolCallContext, may_act: Callable[[], bool]) -> CallOutcome | None:
        """None: every call of the backend may wait."""
        del ctx, may_act
        return None

    def cancel(self, call_id: str) -> None:
        self.cancelled.append(call_id)

    async def wait_finished(self, call_id: str) -> None:
        """No function runs after its call."""

    async def query_outcome(self, past: PastAttempt) -> CallOutcome:
        del past  # The backend answers no questions of nodes.
        raise OutcomeUnknown

    async def follow_task(self, past: PastAttempt, task: str) -> CallOutcome:
        self._backend.followed_ms.append(past.left_ms)
        while self._backend.hold and past.call_id not in self.cancelled:
            await asyncio.sleep(0.01)
        if self._backend.lost:
            raise OutcomeUnknown(f"task {task} is not known")
        if past.call_id in self.cancelled:
            return CallOutcome(error=fault("CANCELLED", "not wanted"))
        return self._backend.outcome


# --- the realm ------------------------------------------------------------------------------------


class ToolNode(Node):
    """A node with the decider of tools and its executor."""

    board: CallNotifier
    places: CallSlots
    acting: CallExecutor
    host: ToolHost
    epoch: str


class ToolWorld(World):
    """Nodes that call the tools of one backend."""

    def until_it_cannot_act(self) -> None:
        """Advance the time until the recovered call can no longer act."""
        said = [getattr(fact, "may_act_until_ms", 0) or 0 for fact in self.tool_facts(1)]
        while (left_ms := max(said, default=0) - self.now_ms()) > 0:
            self.pass_s(min(left_ms / 1_000, 50))

    def __init__(self, *, threads: bool = False) -> None:
        super().__init__(threads=threads)
        self.backend = ToolBackend()

    def begin(self, *capabilities: Capability, **settings: Any) -> ToolNode:
        """Start a node; all nodes have the same tools by default."""
        visible = node_tools(*(capabilities or CAPABILITIES))
        started = self.start([], visible=visible, **settings)
        return cast("ToolNode", started)

    def kernel(
        self,
        node: Any,
        concerns: Sequence[Decider],
        *,
        visible: ToolCatalogue,
        host: ToolHost | None = None,
        credentials: CredentialSource = NO_CREDENTIALS,
        **settings: Any,
    ) -> Kernel:
        node.epoch = f"{node.name}.{next(self._numbers)}"
        capabilities = [tool.capability for tool in visible]
        node.board, node.host = CallNotifier(), host or BackendHost(self.backend)
        node.places = CallSlots(capabilities, node, self.now_ms)

        async def ask(*asked: Any) -> Any:
            return await node.kernel.ask(*asked)

        def acts_for(session: str) -> bool:
            return node.kernel.acts_for(session)

        node.acting = CallExecutor(
            ask=ask,
            blobs=node.bus.blobs,
            visible=visible,
            hosts={tool.surface: node.host for tool in visible},
            places=node.places,
            board=node.board,
            epoch=node.epoch,
            now_ms=self.now_ms,
            acts_for=acts_for,
            credentials=credentials,
        )
        waits = WaitExecutor(ask=ask, timers=node.bus.timers, now_ms=self.now_ms)
        ours = CallerDecider(CallRules(visible, node.places, node.epoch))
        return Kernel(
            node.bus,
            node,
            [*concerns, ours],
            KernelSettings(
                identity=NodeIdentity(node.name, node.epoch, b"", lambda presence: False),
                now_ms=self.now_ms,
                uptime_s=self.uptime_s,
                **settings,
            ),
            effect_handlers={**node.acting.handlers, **waits.handlers},
            queries={},
        )

    # --- the turn's part --------------------------------------------------------------------------

    def request_calls(self, *calls: RequestedCall, key: str = "a", run: str = "run-1") -> None:
        """Request these calls in a run of the session."""
        asked = self.request("request", key, run=run, calls=calls)
        assert not asked.code, asked.answers[-1].body

    def retain_calls(self, *calls: RequestedCall, key: str = "a", run: str = "run-1") -> None:
        """Continue the run with these calls alone."""
        self.request("retain", key, run=run, calls=calls)

    def end_run(self, *, key: str = "a", run: str = "run-1") -> None:
        """End the run."""
        self.request("end", key, run=run)

    def expect(
        self, node: ToolNode, number: int, run: str = "run-1"
    ) -> asyncio.Future[CallProgress]:
        async def expected() -> asyncio.Future[CallProgress]:
            return node.board.future(operation(number, run))

        return self.run(expected())

    def progress(self, node: ToolNode, *, key: str = "a", run: str = "run-1") -> list[CallProgress]:
        """The progress of a run's calls, from their actor."""
        asked = node.kernel.ask("turn", key, CallsQuery(run_id=run), CallsView)
        return list(self.run(asked).calls)

    def store(self, node: ToolNode, data: bytes) -> str:
        """Put something into the blob store."""
        self.run(node.bus.blobs.put(data))
        return digest_bytes(data)

    # --- what is stored ---------------------------------------------------------------------------

    def tool_facts(self, number: int = 0, key: str = "a", run: str = "run-1") -> list[Any]:
        """The tool facts of a session, or of one call."""
        codec = CallerDecider.codec
        found = [fact for one in self.stored("turn", key) for fact in codec.decode(one.body)]
        found = [fact for fact in found if isinstance(fact, CallFact)]
        return [f for f in found if not number or f.operation_id == operation(number, run)]

    def kinds(self, number: int = 0, key: str = "a", run: str = "run-1") -> list[str]:
        """The short names of these facts."""
        tags = [str(f.__struct_config__.tag) for f in self.tool_facts(number, key, run)]
        return [tag.removeprefix("tool.").removesuffix(".v1") for tag in tags]

    def executions(self, number: int, run: str = "run-1") -> int:
        return self.backend.executions[operation(number, run)]

    def cancel_run(self, node: ToolNode, run: str = "run-1") -> None:
        self.run(called(lambda: node.board.cancel_run(run)))

    def drop_call(self, node: ToolNode, number: int, run: str = "run-1") -> None:
        self.run(called(lambda: node.board.drop(run, operation(number, run))))
