"""A realm in memory, with nodes that start, crash and restart, and a client.

The kernel, its actors, the ports and the journal are the real ones; time, chance and the server's
latency are simulated. On the virtual clock a run takes no real time and is deterministic; on a
``LoopThread`` actors are threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextvars import Context, ContextVar, copy_context
from itertools import count
from typing import Any, TypeVar

import msgspec
import pykka

from rookery.actors.kernel.decider import Decider
from rookery.actors.kernel.entities.mailbox import Passivate
from rookery.actors.kernel.executors.asks import EffectHandler, QueryHandler
from rookery.actors.kernel.runtime.kernel import Kernel
from rookery.actors.kernel.runtime.node import KernelSettings, NodeDecider
from rookery.actors.kernel.runtime.ownership import NodeIdentity
from rookery.actors.metrics import KernelMetrics, NoMetrics
from rookery.bus.event_loop import LoopThread
from rookery.bus.memory import MemoryBus, MemoryServer
from rookery.bus.ports import (
    PARTITIONS,
    Appended,
    AppendRequest,
    DeadLetter,
    Delivery,
    EntitySnapshot,
    ReplyMessage,
    StoredMessage,
)
from rookery.schemas.codec import encode_facts, encode_json
from rookery.schemas.digest import ZERO_CHAIN, chain
from rookery.schemas.envelope import EntityId, Fact, fill_envelope
from rookery.schemas.ids import fact_id
from tests.kernel.clients import SentRequest
from tests.kernel.fault_schedule import Exposed, ExposedJournal, FaultSchedule
from tests.kernel.tally import Chime, EchoDecider, Ring, TallyDecider
from tests.kernel.virtual_clock import Clockwork

T = TypeVar("T")

CODECS = {c.family: c.codec for c in (TallyDecider, EchoDecider, NodeDecider)}
BEGAN_MS = 1_800_000_000_000
PATIENCE_S, PATIENCE_WITH_THREADS_S = 60.0, 200.0
"""On the virtual clock, and in real time."""
_node: ContextVar[Node | None] = ContextVar("_node", default=None)


class Node:
    """One kernel on a bus of its own; also the loop as this node sees it."""

    def __init__(self, world: World, name: str, concerns: Sequence[Decider], **settings: Any):
        self.world, self.name = world, name
        self.weather = FaultSchedule(world._loop)
        self.bus = MemoryBus(world.server)
        self.journal = ExposedJournal(self.bus.journal, self.weather, world._loop)
        for port in ("blobs", "claims", "snapshots"):
            setattr(self.bus, port, Exposed(getattr(self.bus, port), self.weather))
        self.bus.journal = self.journal  # type: ignore[assignment]
        self.tasks: set[asyncio.Task[Any]] = set()
        self._context: Context = copy_context()
        self._context.run(_node.set, self)
        self.kernel = world.kernel(self, concerns, **settings)

    def start(self) -> Node:
        self.world.run(self.bus.start())
        self._context.copy().run(self.kernel.start)
        return self

    def stop(self) -> bool:
        quiet = self.kernel.stop()
        self.world.run(self.bus.stop())
        return quiet

    def crash(self) -> None:
        """End all threads, tasks and messages of the node. Its claims stay until they expire; the
        server notices the lost connection."""
        self.weather.up = False
        for actor in self.kernel._actors.values():
            pykka.ActorRegistry.unregister(actor)
        self.world.run(self._vanish())

    async def _vanish(self) -> None:
        for task in self.tasks:
            task.cancel()
        await self.bus.request_endpoint.close()

    def release(self) -> None:
        """Release what the journal's gates hold."""
        self.world.run(called(self.journal.release))

    def passivate(self) -> None:
        """Evict all idle entities, as after a long idle time."""
        for mailbox in self.kernel._mailboxes.values():
            mailbox.post(Passivate(self.world.now_ms() + 1))

    def again(self, stored: StoredMessage) -> None:
        """Deliver a message as a recovery does."""
        self.world.run(called(lambda: self.kernel._recovery._redispatch(stored)))

    # --- port Loop ------------------------------------------------------------------------------

    def call_soon(self, call: Callable[..., object], *args: object) -> None:
        self.world.post(self._if_up, call, *args, context=self._context.copy())

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        return self.world.loop.run(work, timeout_s)

    def _if_up(self, call: Callable[..., object], *args: object) -> None:
        if self.weather.up:
            call(*args)


class World:
    """Use it with ``with``: at the end all nodes are stopped."""

    def __init__(self, *, threads: bool = False) -> None:
        self.threads = threads
        self.loop: Any = LoopThread() if threads else Clockwork()
        self._loop: Any = self.loop.loop if threads else self.loop
        self._loop.set_task_factory(_owned)
        self._loop.set_exception_handler(self._note_error)
        self._errors: list[BaseException] = []
        self._slept_s = 0.0
        self.server = MemoryServer(self.now_ms)
        self._outside = MemoryBus(self.server)
        self.rings: list[tuple[str, Ring]] = []
        self.hold_rings = False
        self.on_ring: Callable[[str], None] = lambda fact_id: None
        self.nodes: list[Node] = []
        self._numbers = count(1)

    def __enter__(self) -> World:
        return self

    def _note_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Collect errors that no code handles: a failed callback, a task without a waiter."""
        self._errors.append(context.get("exception") or AssertionError(context["message"]))

    def raise_errors(self) -> None:
        """Raise the collected errors."""
        if self._errors:
            raise self._errors[0]

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._end()
        if kind is None:
            self.raise_errors()

    def _end(self) -> None:
        ours = {actor for node in self.nodes for actor in node.kernel._actors.values()}
        for node in self.nodes:
            if node.weather.up:
                node.crash()
        assert not ours.intersection(pykka.ActorRegistry.get_all()), "a node leaves no actor behind"
        if self.threads:
            self.loop.close()
        else:
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self.run(_all(tasks))
            self.loop.close()

    # --- time -----------------------------------------------------------------------------------

    def now_ms(self) -> int:
        return BEGAN_MS + int(1000 * self.uptime_s())

    def uptime_s(self) -> float:
        return self._slept_s + float(self._loop.time())

    def sleep_s(self, seconds: float) -> None:
        """Time passes for the server and the clocks, but not for any loop: the machines sleep."""
        self._slept_s += seconds

    def post(self, call: Callable[..., object], *args: object, context: Context) -> None:
        schedule = self._loop.call_soon_threadsafe if self.threads else self._loop.call_soon
        schedule(call, *args, context=context)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run(work, PATIENCE_S)

    def pass_s(self, seconds: float) -> None:
        """Let time pass; on the virtual clock only."""
        assert not self.threads
        self.run(asyncio.sleep(seconds))

    def until(self, holds: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
        """Run the loop until ``holds``, checked between two steps."""
        patience_s = PATIENCE_WITH_THREADS_S if self.threads else patience_s

        async def watch() -> None:
            async with asyncio.timeout(patience_s):
                while not holds():
                    await asyncio.sleep(0.002 if self.threads else 0.01)

        self.loop.run(watch())

    def run_steps(self, steps: int) -> None:
        """Run a few steps of the loop without time passing."""

        async def turn() -> None:
            for _ in range(steps):
                await asyncio.sleep(0)

        self.run(turn())

    def settle(self) -> None:
        """Run everything that is due before the next heartbeat."""
        self.pass_s(0.1)

    # --- nodes ----------------------------------------------------------------------------------

    def node(
        self, concerns: Sequence[Decider] | None = None, *, name: str = "", **settings: Any
    ) -> Node:
        name = name or f"n{len(self.nodes) + 1}"
        node = Node(self, name, concerns or [TallyDecider(), EchoDecider()], **settings)
        self.nodes.append(node)
        return node

    def start(self, concerns: Sequence[Decider] | None = None, **settings: Any) -> Node:
        return self.node(concerns, **settings).start()

    def kernel(
        self,
        node: Node,
        concerns: Sequence[Decider],
        *,
        queries: Mapping[str, QueryHandler] | None = None,
        observer: KernelMetrics | None = None,
        performer: EffectHandler | None = None,
        neighbour_is_dead: bool = False,
        **settings: Any,
    ) -> Kernel:
        async def ring(effect: Ring) -> None:
            self.rings.append((node.name, effect))
            self.on_ring(effect.key)
            while self.hold_rings:
                await asyncio.sleep(0.01)

        def chime(effect: Chime) -> None:
            self.rings.append((node.name, effect))

        epoch = f"{node.name}.{next(self._numbers)}"
        return Kernel(
            node.bus,
            node,
            concerns,
            KernelSettings(
                identity=NodeIdentity(node.name, epoch, b"", lambda presence: neighbour_is_dead),
                now_ms=self.now_ms,
                uptime_s=self.uptime_s,
                metrics=observer or NoMetrics(),
                **settings,
            ),
            effect_handlers={Ring: performer or ring, Chime: performer or chime},
            queries=queries or {},
        )

    # --- asking ---------------------------------------------------------------------------------

    def ask(
        self,
        verb: str,
        key: str = "a",
        id: str = "",  # noqa: A002 - the wire's name.
        on_answer: Callable[[SentRequest], None] = lambda asked: None,
        mode: str = "",
        traceparent: str = "",
        by: str = "",
        **body: object,
    ) -> SentRequest:
        """Send a request; its reply comes later."""
        number = next(self._numbers)
        request = Delivery(
            verb=verb,
            key=key,
            id=id or f"c{number}",
            body=encode_json(body),
            mode=mode,
            reply_to=f"reply.{number}",
            traceparent=traceparent,
            by=by,
        )
        asked = SentRequest(request, on_answer)
        switch = self.server.realm("default").request_router
        switch.listen(request.reply_to, asked.hear)
        self.post(switch.request, request, context=copy_context())
        return asked

    def request(self, verb: str, key: str = "a", **more: Any) -> SentRequest:
        """Send a request and wait for its first reply."""
        asked = self.ask(verb, key, **more)
        self.until(lambda: asked.answers)
        return asked

    def submit(
        self,
        verb: str,
        key: str = "a",
        id: str = "",  # noqa: A002 - the wire's name.
        reply_to: str = "",
        **body: object,
    ) -> int:
        """Send a command through the inbox."""
        return self.run(
            self._outside.inbox.submit(
                verb,
                key,
                encode_json(body),
                message_id=id or f"s{next(self._numbers)}",
                reply_to=reply_to,
            )
        )

    def listen(self, subject: str) -> list[ReplyMessage]:
        """The replies to a subject, as they arrive."""
        heard: list[ReplyMessage] = []
        self.listen_with(subject, heard.append)
        return heard

    def listen_with(self, subject: str, hear: Callable[[ReplyMessage], None]) -> None:
        self.server.realm("default").request_router.listen(subject, hear)

    # --- what stands ----------------------------------------------------------------------------

    def stored(self, family: str = "", key: str = "") -> list[StoredMessage]:
        """The journal's messages, without the nodes' own facts."""
        journal = self.server.realm("default").log
        everything = journal.page(0, 1 << 30)
        return [
            one
            for one in everything
            if family in ("", one.entity.family)
            and key in ("", one.entity.key)
            and b"node.partitions_taken" not in one.body
        ]

    def facts(self, family: str = "tally", key: str = "a") -> list[Any]:
        codec = CODECS[family]
        return [fact for one in self.stored(family, key) for fact in codec.decode(one.body)]

    def numbers(self, family: str = "tally", key: str = "a") -> list[int]:
        """The numbers of the tally or echo, in order."""
        return [fact.amount for fact in self.facts(family, key) if hasattr(fact, "amount")]

    def dead(self) -> list[DeadLetter]:
        return [letter for letter, _ in self.server.realm("default").commands.dead_letters.values()]

    def retry_dead(self, number: int) -> None:
        self.run(self._outside.inbox.retry_dead_letter(number))

    def keep_horizon(self, schema: int) -> None:
        """Save a watermark as another version would: everything is done."""
        end = len(self.stored())
        for partition in range(PARTITIONS):
            name = EntityId("kernel", f"partition-{partition}")
            self.run(self._outside.snapshots.save(name, schema, EntitySnapshot(end, b"")))

    def forge(self, sequence: int, body: bytes) -> None:
        """Change a stored message, as only a broken disk or an intruder would."""
        messages = self.server.realm("default").log._messages
        messages[sequence - 1] = msgspec.structs.replace(messages[sequence - 1], body=body)

    def write(self, facts: Iterable[Fact], family: str = "tally", key: str = "a") -> int:
        """Append facts as another node would, at once; their sequence."""
        return self.run(self._write(list(facts), EntityId(family, key)))

    async def _write(self, facts: list[Fact], entity: EntityId) -> int:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.write_now(facts, entity, done.set_result)
        (outcome,) = await done
        assert isinstance(outcome, Appended)
        return outcome.sequence

    def write_now(
        self,
        facts: list[Fact],
        entity: EntityId,
        settle: Callable[[Any], None] = lambda outcomes: None,
    ) -> None:
        """The same on the loop."""
        journal, before = self.server.realm("default").log, self.stored(*entity)
        last = before[-1] if before else None
        number = sum(len(msgspec.json.decode(one.body)) for one in before)
        for fact in facts:
            number += 1
            command = (f"rival{next(self._numbers)}",)
            name = fact_id(*entity, number)
            fill_envelope(
                fact, id=name, at_ms=self.now_ms(), session=entity.key, cause=command,
                cause_digest="rival", source="rival", traceparent="",
            )  # fmt: skip
        body = encode_facts(facts)
        append = AppendRequest(
            entity=entity,
            expected=last.sequence if last else 0,
            message_id=f"rival.{next(self._numbers)}",
            body=body,
            chain=chain(last.chain if last else ZERO_CHAIN, body),
        )
        journal.append([append], settle)


def _owned(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
    """A task that ends with its node."""
    task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **options)
    node = _node.get()
    if node is not None:
        node.tasks.add(task)
        task.add_done_callback(node.tasks.discard)
        if not node.weather.up:
            task.cancel()
    return task


async def called(call: Callable[[], object]) -> None:
    """A call on the loop."""
    call()


async def _all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)
