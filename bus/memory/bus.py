"""The bus in memory: JetStream's contracts without a server, and its request endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from rookery.bus.commands.command_messages import is_reply_subject
from rookery.bus.commands.request_endpoint import error_reply, partition_unowned
from rookery.bus.memory.inbox import MemoryCommands, MemoryInbox, MemoryTimers
from rookery.bus.memory.journal import MemoryFeed, MemoryJournal, MemoryLog
from rookery.bus.memory.storage import (
    MemoryBlobs,
    MemoryCheckpointStore,
    MemoryClaims,
    MemoryEntitySnapshots,
    MemorySecrets,
)
from rookery.bus.memory.workers import MemoryHookServices, MemoryToolWorkers, MemoryWorkerRegistry
from rookery.bus.ports import Delivery, ReplyMessage
from rookery.bus.ports.commands import HookHandler
from rookery.bus.subjects import Subjects, partition_of

__all__ = [
    "MemoryBus",
    "MemoryRequestEndpoint",
    "MemoryRequestRouter",
    "MemoryServer",
]

# --- requests -------------------------------------------------------------------------------------

# The request endpoint in memory; ``MemoryRequestRouter`` is the server's part.
#
# A client subscribes before it sends. A request that no node receives gets its error at once, as
# from the server and the endpoints.


PAYLOAD_BYTES_MAX = 1 << 20


class MemoryRequestRouter:
    """All open endpoints of a realm, and the subscriptions to replies."""

    def __init__(self) -> None:
        self.endpoints: list[MemoryRequestEndpoint] = []
        self._listeners: dict[str, Callable[[ReplyMessage], None]] = {}

    def listen(self, subject: str, on_answer: Callable[[ReplyMessage], None]) -> None:
        """Subscribe to replies on ``subject``."""
        self._listeners[subject] = on_answer

    def request(self, request: Delivery) -> None:
        """Deliver a request to the owner of its partition."""
        partition = partition_of(request.key)
        owners = [endpoint for endpoint in self.endpoints if partition in endpoint.owned]
        for endpoint in owners:
            endpoint.receive(request)
        if not owners:
            self.publish([partition_unowned(request.reply_to)])

    def publish(self, answers: Sequence[ReplyMessage]) -> None:
        for answer in answers:
            listener = self._listeners.get(answer.reply_to)
            if listener is not None:
                listener(answer)


class MemoryRequestEndpoint:
    """Port ``RequestEndpoint``."""

    def __init__(self, switch: MemoryRequestRouter) -> None:
        self._router = switch
        self._deliver: Callable[[list[Delivery]], None] | None = None
        self.owned: frozenset[int] = frozenset()
        self.reply_bytes_max = PAYLOAD_BYTES_MAX

    async def open(self, deliver: Callable[[list[Delivery]], None]) -> None:
        self._deliver = deliver
        self._router.endpoints.append(self)

    async def serve_partitions(self, partitions: frozenset[int]) -> None:
        self.owned = partitions

    def reply(self, answers: Sequence[ReplyMessage]) -> None:
        """Send replies; a reply that is too large becomes an error, as on the server."""
        self._router.publish([_within_limit(a) for a in answers if is_reply_subject(a.reply_to)])

    async def close(self) -> None:
        self._deliver = None
        self.owned = frozenset()
        if self in self._router.endpoints:
            self._router.endpoints.remove(self)

    def receive(self, request: Delivery) -> None:
        asyncio.get_running_loop().call_soon(self._deliver_request, request)

    def _deliver_request(self, request: Delivery) -> None:
        if self._deliver is not None:
            self._deliver([request])


def _within_limit(answer: ReplyMessage) -> ReplyMessage:
    size = len(answer.body)
    if size <= PAYLOAD_BYTES_MAX:
        return answer
    message = f"{size} bytes, the limit is {PAYLOAD_BYTES_MAX}"
    return error_reply(answer.reply_to, "PAYLOAD_TOO_LARGE", message)


# --- bus ------------------------------------------------------------------------------------------

# The bus in memory: JetStream's contracts without a server process or a disk, on a given clock.
#
# A ``MemoryServer`` is the server: buses that share one see the same realms, so that several nodes
# can run in one process. All contents end with the process.


class _MemoryRealm:
    """The server's state of one realm, shared by all buses."""

    def __init__(self, name: str, now_ms: Callable[[], int]) -> None:
        self.subjects = Subjects(name)
        self.log = MemoryLog(now_ms)
        self.feed = MemoryFeed(self.log)
        self.request_router = MemoryRequestRouter()
        self.commands = MemoryCommands(now_ms)
        self.timers = MemoryTimers(self.commands, now_ms)
        self.blobs = MemoryBlobs()
        self.images = MemoryBlobs()
        self.claims = MemoryClaims(now_ms)
        self.snapshots = MemoryEntitySnapshots()
        self.secrets = MemorySecrets()
        self.checkpoints = MemoryCheckpointStore()
        self.worker_registry = MemoryWorkerRegistry()
        self.hook_handlers: dict[str, HookHandler] = {}


class MemoryServer:
    """The realms of one server."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._realms: dict[str, _MemoryRealm] = {}

    def realm(self, name: str) -> _MemoryRealm:
        if name not in self._realms:
            self._realms[name] = _MemoryRealm(name, self._now_ms)
        return self._realms[name]


class MemoryBus:
    """Port ``Bus``."""

    def __init__(self, server: MemoryServer, *, realm: str = "default") -> None:
        self._shared = shared = server.realm(realm)
        self.realm = realm
        self.journal = MemoryJournal(shared.log)
        self.feed = shared.feed
        self.request_endpoint = MemoryRequestEndpoint(shared.request_router)
        self.inbox = MemoryInbox(shared.commands)
        self.timers = shared.timers
        self.blobs = shared.blobs
        self.images = shared.images
        self.claims = shared.claims
        self.snapshots = shared.snapshots
        self.secrets = shared.secrets
        self.checkpoints = shared.checkpoints
        self.tool_workers = MemoryToolWorkers(shared.worker_registry)
        self.hook_services = MemoryHookServices(shared.hook_handlers)
        self._started = False

    @property
    def connected(self) -> bool:
        return self._started

    async def start(self) -> None:
        self._started = True

    async def stop(self) -> None:
        await self.request_endpoint.close()
        await self.inbox.stop()
        self._started = False

    def partition(self, key: str) -> int:
        return partition_of(key)

    def send_output(self, session: str, body: bytes) -> None:
        subject = self._shared.subjects.output(session)
        self._shared.request_router.publish([ReplyMessage(subject, body)])

    def reset(self) -> None:
        self.journal.abandon_terms()
