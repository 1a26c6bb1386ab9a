"""``Driver``: takes a run's steps; and ``RunProvisioner``: the environment that a run gets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from time import perf_counter
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from rookery.actors.execution.agents import Models
from rookery.actors.execution.agents.models import NO_MODELS
from rookery.actors.execution.history import without_limits
from rookery.actors.hooks import NodeHooks
from rookery.actors.kernel.executors import NotExecutableHere
from rookery.actors.messages import TurnInput
from rookery.actors.metrics import NO_METRICS, KernelMetrics
from rookery.actors.sandbox import (
    CallTool,
    OnOutput,
    Outcome,
    PendingResult,
    ProgramCall,
    Sandbox,
    SuspendedRun,
    Tool,
    ToolResult,
    check_new_request,
    ignore_output,
    limits_in_force,
)
from rookery.actors.sandbox.sessions import ResultBatch
from rookery.actors.tools.agents import RegisteredAgent
from rookery.actors.tools.catalogue import CatalogueTool
from rookery.actors.turns import ImmediateKind
from rookery.schemas.agents import ModelUsage
from rookery.schemas.calls import AvailableTool, RunEnvironment, VisibleSurfaces
from rookery.schemas.envelope import Fact
from rookery.schemas.errors import Refused
from rookery.schemas.facts import model
from rookery.schemas.run import Language, RunOutput, RunRequest, RunResult, SessionLimits

__all__ = [
    "AskModel",
    "AwaitModel",
    "CallsRequested",
    "Driver",
    "Finished",
    "RunInput",
    "RunProvisioner",
    "SandboxDriver",
    "StartJob",
    "Step",
    "SyncCall",
    "TurnInputs",
]

# --- driver ---------------------------------------------------------------------------------------

# ``Driver``: takes a run's steps; in a node, ``SandboxDriver`` with a program in the sandbox.
#
# A driver gets the run's input, then the outcomes of its calls, and returns what it wants next. It
# does not know the journal. Synchronous calls are made through ``SyncCall`` during a step.


SyncCall = Callable[[ProgramCall], Awaitable[ToolResult | None]]
"""Make a synchronous call on the bus's loop; ``None``: the step must end here."""


class RunInput(NamedTuple):
    """The input of a run."""

    run_id: str
    session: str
    request: RunRequest
    environment: RunEnvironment
    tools: Sequence[Tool]
    now_ms: int
    recorded: Sequence[ResultBatch]
    """The results of earlier steps, to be replayed; an empty batch for a step of inputs only."""
    on_output: OnOutput = ignore_output
    """Gets the output of the program as it is printed."""
    baseline: tuple[str, int] = ("", 0)
    """The model that is set for the session, and its epoch, as they were before the first step."""
    session_usage: ModelUsage = ModelUsage()
    """What the session's runs have used of models so far, this one and their children too."""
    child_usage: ModelUsage = ModelUsage()
    """What the children of this run have used."""


class CallsRequested(NamedTuple):
    """The driver waits for these calls."""

    calls: tuple[ProgramCall, ...]
    """All calls it waits for, including those of earlier steps."""
    inputs: tuple[TurnInput, ...] = ()
    """Machine inputs that precede those of the calls."""
    timer_ms: int | None = None
    """The driver continues after this time with the outcomes by then."""
    answers: tuple[Fact, ...] = ()
    """What a model answered, and its calls that are refused."""
    wanted: int | None = None
    """How many calls the model wanted, with those that are refused."""
    whole: bool = False
    """The driver continues only when all calls have ended."""


class AskModel(NamedTuple):
    """The driver asks its model as soon as this is recorded: it continues without outcomes."""

    questions: tuple[Fact, ...]
    """Messages that join the conversation, and the question."""
    answers: tuple[Fact, ...] = ()
    """What became of the question before."""
    inputs: tuple[TurnInput, ...] = ()

    @property
    def question(self) -> model.Requested:
        asked = self.questions[-1]
        assert isinstance(asked, model.Requested), "the question is behind its messages"
        return asked


class StartJob(NamedTuple):
    """The provider of the model works on the answer as a job: the driver continues without outcomes
    as soon as this is recorded."""

    started: model.JobStarted


class AwaitModel(NamedTuple):
    """The model cannot be asked now. The driver continues without outcomes: after the delay, or, if
    that is long or not known, once the run is no longer parked."""

    code: str
    """What the run waits for, if it is parked."""
    operation_id: str
    """Of the question."""
    answers: tuple[Fact, ...] = ()
    """What became of the question."""
    inputs: tuple[TurnInput, ...] = ()
    """To be recorded first; without inputs the answers are recorded when the run is parked."""
    delay_s: float | None = None
    until_ms: int | UnsetType = UNSET
    """When the delay is over."""
    lease: str | UnsetType = UNSET
    question: model.Requested | None = None
    """Whose answer is fetched then, if a job of its provider works on it."""
    """The key of the lease that the model needs."""


class TurnInputs(NamedTuple):
    """Machine inputs to record before the driver continues."""

    inputs: tuple[TurnInput, ...]


class Finished(NamedTuple):
    """The run is over."""

    result: RunResult
    kept: bool
    """Whether its changes to the session are valid."""
    inputs: tuple[TurnInput, ...] | None = None
    """The inputs that end the turn; by default those of the result."""
    artifacts: tuple[bytes, ...] = ()
    """The contents of the result's artifacts."""
    answers: tuple[Fact, ...] = ()
    """What a model answered, or why it did not."""
    withheld: RunResult | None = None
    """The result of the program, if a hook leaves it to the record alone."""


Step = CallsRequested | AskModel | StartJob | AwaitModel | TurnInputs | Finished


class Driver(Protocol):
    """Takes the steps of one run. Used on the bus's loop. During a step the driver enforces the
    run's time limit."""

    async def begin(self, given: RunInput, call: SyncCall) -> Step:
        """Take the first step."""

    async def resume_parked(
        self,
        given: RunInput,
        answers: Mapping[int, ToolResult],
        call: SyncCall,
        advance_ms: int = 0,
    ) -> Step:
        """Take the next step of a run that was parked."""

    async def next_step(self, answers: Mapping[int, ToolResult], advance_ms: int = 0) -> Step:
        """Take the next step with these outcomes, ``advance_ms`` later on the driver's clock. No
        outcomes: the inputs are recorded, or only time has passed."""

    def output(self) -> RunOutput:
        """The output so far of a suspended run."""

    async def stop(self) -> RunResult | None:
        """End the run now; its output so far if the driver was suspended. A step in progress
        returns at once."""


class SandboxDriver:
    """A program in the sandbox takes the steps.

    A step begins on the loop's thread, and so does what follows a synchronous call. The sandbox's
    threads continue it after some milliseconds."""

    def __init__(self, sandbox: Sandbox, metrics: KernelMetrics = NO_METRICS) -> None:
        self._sandbox, self._metrics = sandbox, metrics
        self._language, self._sync_calls_s = "", 0.0
        self._loop, self._loop_thread = asyncio.get_running_loop(), threading.get_ident()
        self._sync_calls: set[asyncio.Task[None]] = set()
        self._session = ""
        self._answer: CallTool = _no_answer
        self._on_output: OnOutput = ignore_output

    async def begin(self, given: RunInput, call: SyncCall) -> Step:
        self._set_run(given, call)
        request = msgspec.structs.replace(
            without_limits(given.request), session_id=given.session, limits=given.environment.limits
        )
        submit = partial(
            self._sandbox.submit,
            request,
            now_ms=given.now_ms,
            answer=self._answer,
            tools=given.tools,
            known=given.recorded,
            on_output=self._on_output,
            here=True,
        )
        return await self._step(submit)

    async def resume_parked(
        self,
        given: RunInput,
        answers: Mapping[int, ToolResult],
        call: SyncCall,
        advance_ms: int = 0,
    ) -> Step:
        self._set_run(given, call)
        return await self.next_step(answers, advance_ms)

    async def next_step(self, answers: Mapping[int, ToolResult], advance_ms: int = 0) -> Step:
        submit = partial(
            self._sandbox.submit_resume,
            self._session,
            answers,
            advance_ms=advance_ms,
            answer=self._answer,
            on_output=self._on_output,
            here=True,
        )
        return await self._step(submit)

    def output(self) -> RunOutput:
        return self._sandbox.run_output(self._session)

    async def stop(self) -> RunResult | None:
        return await self._sandbox.in_thread(self._sandbox.cancel, self._session)

    def _set_run(self, given: RunInput, call: SyncCall) -> None:
        self._session, self._language = given.session, given.environment.language
        self._on_output = given.on_output

        def answer(call_request: ProgramCall) -> PendingResult | None:
            """Runs on the thread that executes the program."""
            if call_request.awaited:
                return None  # Awaited calls are sent together at the end of the step.
            result: PendingResult = Future()
            if threading.get_ident() == self._loop_thread:
                self._make_call(call, call_request, result)
            else:
                self._loop.call_soon_threadsafe(self._make_call, call, call_request, result)
            return result

        self._answer = answer

    def _make_call(self, call: SyncCall, request: ProgramCall, result: PendingResult) -> None:
        task = self._loop.create_task(self._bring_result(call, request, result))
        self._sync_calls.add(task)
        task.add_done_callback(self._sync_calls.discard)

    async def _bring_result(
        self, call: SyncCall, request: ProgramCall, result: PendingResult
    ) -> None:
        """Make a synchronous call. With its result the program continues, on this thread first."""
        began_s = perf_counter()
        found: ToolResult | None = None
        try:
            found = await call(request)
        except asyncio.CancelledError:
            pass  # The step must end.
        except Exception as error:
            result.set_exception(error)
            return
        finally:
            self._sync_calls_s += perf_counter() - began_s
        result.set_result(found)

    async def _step(self, submit: Callable[[], Future[Outcome]]) -> Step:
        began_s, self._sync_calls_s = perf_counter(), 0.0
        under_way = submit()
        outcome = under_way.result() if under_way.done() else await asyncio.wrap_future(under_way)
        seconds = perf_counter() - began_s - self._sync_calls_s
        self._metrics.sandbox_step(self._language, max(0.0, seconds))
        if isinstance(outcome, SuspendedRun):
            return CallsRequested(outcome.calls, timer_ms=outcome.timer_ms)
        kept = self._sandbox.last_run_kept(self._session)
        if not outcome.artifacts:
            return Finished(outcome, kept)
        return Finished(outcome, kept, artifacts=self._sandbox.pop_artifacts(self._session))


def _no_answer(_call: ProgramCall) -> ToolResult | None:
    return None


# --- provisioning ---------------------------------------------------------------------------------

# ``RunProvisioner``: the environment of the runs that a node starts: guest, seed, limits and
# tools.
#
# It is decided when a run starts and stored in the run's first fact. A node that continues the run
# must have the same tools.


SEED_BYTES = 32
NO_AGENTS: Final[Mapping[str, RegisteredAgent]] = MappingProxyType({})


class RunProvisioner:
    """One per node; called on any thread."""

    def __init__(
        self,
        *,
        builds: Mapping[Language, str],
        tools: tuple[AvailableTool, ...],
        catalogue: str,
        limits_max: SessionLimits,
        entropy: Callable[[int], bytes],
        hooks: NodeHooks,
        surfaces: Callable[[str], VisibleSurfaces | UnsetType] = lambda _: UNSET,
        models: Models = NO_MODELS,
        policy: str | UnsetType = UNSET,
        added: Callable[[str], CatalogueTool | None] = lambda _: None,
        agents: Mapping[str, RegisteredAgent] = NO_AGENTS,
    ) -> None:
        """``tools`` and ``catalogue`` are the node's own; ``added``: a tool by its name that a
        surface of the realm's catalogue serves. ``limits_max`` caps the limits of
        requests and sessions. ``surfaces``: what a session sees of the catalogue. ``policy``: the
        digest of the node's. ``agents``: by their names."""
        self._agents = agents
        self._surfaces, self.hooks, self.models, self._policy = surfaces, hooks, models, policy
        self._builds, self._tools, self._catalogue = dict(builds), tools, catalogue
        self._max, self._entropy, self._added = limits_max, entropy, added
        self._digests = {tool.name: tool.schema_digest for tool in tools}

    def validate(self, request: RunRequest) -> None:
        """Raise ``Refused`` if this node could execute the request in no session."""
        check_new_request(request)
        self.models.check(request, self._agent(request))
        self._build(request.language)

    def __call__(
        self,
        request: RunRequest,
        session_limits: SessionLimits | UnsetType = UNSET,
        key: str = "",
    ) -> RunEnvironment | ImmediateKind:
        if request.immediate is not UNSET:
            has_key = request.immediate.context_key is not UNSET
            return ImmediateKind.CONTEXT if has_key else ImmediateKind.APPEND
        session = SessionLimits() if session_limits is UNSET else session_limits
        environment = RunEnvironment(
            language=request.language,
            build=self._build(request.language),
            seed=self._entropy(SEED_BYTES).hex(),
            limits=self._cap(limits_in_force(request, session)),
            session_limits=session_limits,
            tools=self._tools,
            catalogue=self._catalogue,
            surfaces=self._surfaces(key),
            model=self.models.environment(request, self._agent(request))
            if request.has_prompt
            else UNSET,
        )
        return self.pin(environment)

    def pin(self, environment: RunEnvironment) -> RunEnvironment:
        """The environment of a run that starts now, with the policy and the hooks of the node."""
        if environment.policy != self._policy:
            environment = msgspec.structs.replace(environment, policy=self._policy)
        return self.hooks.pin(environment)

    def require_tools(self, environment: RunEnvironment) -> None:
        """Check tools and hooks before a run continues: ``NotExecutableHere`` for a missing one,
        ``Refused`` for a tool with another schema."""
        self.hooks.require(environment)
        if missing := [tool.name for tool in environment.tools if not self._digest(tool.name)]:
            raise NotExecutableHere(
                f"a run needs tools that this node lacks: {', '.join(missing)[:400]}"
            )
        self.require_same_schemas(environment)
        if environment.model is not UNSET:
            self.models.require_here(environment.model)

    def require_same_schemas(self, environment: RunEnvironment) -> None:
        """Raise ``Refused`` if a tool is missing or has another schema."""
        for tool in environment.tools:
            if self._digest(tool.name) != tool.schema_digest:
                raise Refused(
                    "SNAPSHOT_CAPABILITY_MISMATCH",
                    f"tool {tool.name} has other schemas than when the run started",
                    hint="continue it on a node with the old schemas, or start a new run",
                )

    def _digest(self, name: str) -> str:
        """Of the schemas of a tool; empty if it is unknown. Runs of an older version have the tools
        of workers among those of their node."""
        if name in self._digests:
            return self._digests[name]
        added = self._added(name)
        return "" if added is None else added.available.schema_digest

    def _agent(self, request: RunRequest) -> RegisteredAgent | None:
        """The agent that the request names."""
        if request.agent is UNSET:
            return None
        if (agent := self._agents.get(request.agent)) is None:
            text = f"no agent is called {request.agent[:80]!r}"
            known = ", ".join(sorted(self._agents)) or "none: rookery up --tools MODULE:OBJECT"
            raise Refused("AGENT_NOT_FOUND", text, hint=f"agents of this node: {known[:400]}")
        return agent

    def _build(self, language: Language) -> str:
        build = self._builds.get(language)
        if build is None:
            raise Refused(
                "UNSUPPORTED_FEATURE",
                f"this node does not execute {language}",
                hint=f"languages: {', '.join(sorted(self._builds))}",
            )
        return build

    def _cap(self, limits: SessionLimits) -> SessionLimits:
        names = SessionLimits.__struct_fields__
        least = {name: min(getattr(limits, name), getattr(self._max, name)) for name in names}
        return SessionLimits(**least)
