"""Push notifications: each event of a task to the targets that its client has set.

Targets and how far each of them is are facts, so any gateway goes on where another has ended. An
event arrives at least once. What authenticates the gateway at a target is sealed by a key that
follows from the client's token: the realm cannot read it.
"""

from __future__ import annotations

import asyncio
import logging
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from hashlib import sha3_256
from typing import Any, Final

import msgspec
from a2a.types import TaskPushNotificationConfig
from a2a.utils.errors import InvalidParamsError
from a2a.utils.proto_utils import to_stream_response
from google.protobuf.json_format import MessageToDict, ParseDict
from msgspec.structs import replace

from rookery.actors.daemon_threads import run_on_own_thread
from rookery.actors.tools import ToolError
from rookery.actors.tools.http import HttpExchange, HttpRequest, HttpTransport, parse_url
from rookery.bus.clock import entropy
from rookery.bus.event_loop import Backoff, TaskSet
from rookery.bus.sealed_secrets import NONCE_BYTES, KeyRing, SealedBytes
from rookery.ops.a2a.messages import to_event
from rookery.ops.a2a.task_book import TaskBook
from rookery.ops.a2a.task_facts import A2aState, Cursor, TaskChange, TaskRecord, read_cursor
from rookery.ops.gateways import RealmLink
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import CodedError
from rookery.schemas.peers.gateways import ChangePushTarget, PushTarget

__all__ = ["PushNetworks", "PushNotifications"]

log = logging.getLogger(__name__)

ATTEMPTS_MAX: Final = 10
"""Of one event, before its target is given up: over some five minutes."""
BACKOFF_S: Final = (1.0, 60.0)
CONNECT_S: Final = 10.0
ANSWER_BYTES_MAX: Final = 1 << 16
TARGETS_MAX: Final = 16
"""Of one task."""
CHECK_S: Final = 5.0
UNDELIVERABLE: Final = "PUSH_UNDELIVERABLE"
UNSEALABLE: Final = "PUSH_TOKEN_CHANGED"
_DOMAIN: Final = b"rookery.a2a.push.v1\n"
_SECRETS: Final = ("token", "authentication")


class PushNetworks:
    """Where targets may be: at public addresses, and in networks that the operator names."""

    def __init__(self, networks: Sequence[str]) -> None:
        """``ValueError`` for a text that is no network."""
        self.transport = HttpTransport(networks=networks)

    def check(self, url: str) -> None:
        """Refuse a URL that is no target at all; addresses are checked when it is reached."""
        try:
            self.transport.check(parse_url(url))
        except ToolError as error:
            text = f"push notifications cannot go to {url[:80]!r}: {error}"
            raise InvalidParamsError(text) from None


class PushNotifications:
    """The targets of the tasks of one session."""

    def __init__(
        self, link: RealmLink, book: TaskBook, tokens: Mapping[str, bytes], networks: PushNetworks
    ) -> None:
        self._link, self._book, self._networks = link, book, networks
        self._rings = {
            name: KeyRing([sha3_256(_DOMAIN + token).digest()]) for name, token in tokens.items()
        }
        self._transport, self._tasks = networks.transport, TaskSet()
        self._served: set[tuple[str, str]] = set()

    # --- configurations ---------------------------------------------------------------------------

    async def create(
        self, record: TaskRecord, config: TaskPushNotificationConfig, *, is_whole: bool = False
    ) -> TaskPushNotificationConfig:
        """Set a target: if ``is_whole``, it gets all events, else those from now on. One that is
        set again goes on where it is."""
        self._networks.check(config.url)
        target_id = config.id or record.id
        if len(record.targets) >= TARGETS_MAX and target_id not in record.targets:
            raise InvalidParamsError(f"a task has at most {TARGETS_MAX} push notification configs")
        known = record.targets.get(target_id)
        delivered = "" if is_whole else str(record.last)
        target = PushTarget(
            url=config.url,
            sealed=self._seal(record, target_id, config),
            delivered=delivered if known is None else known.delivered,
        )
        await self._change(record, target_id, target)
        return self._config(record, target_id, target)

    def list(self, record: TaskRecord) -> list[TaskPushNotificationConfig]:
        return [
            self._config(record, target_id, target)
            for target_id, target in sorted(record.targets.items())
        ]

    async def delete(self, record: TaskRecord, target_id: str) -> None:
        if target_id in record.targets:
            await self._change(record, target_id, None)

    async def _change(self, record: TaskRecord, target_id: str, target: PushTarget | None) -> None:
        change = ChangePushTarget(request_id=record.id, target_id=target_id)
        if target is not None:
            change = replace(change, target=target)
        client = await self._link.client()
        await client.ask("push", self._book.session, change)
        await self._book.catch_up()

    def _config(
        self, record: TaskRecord, target_id: str, target: PushTarget
    ) -> TaskPushNotificationConfig:
        config = TaskPushNotificationConfig(id=target_id, task_id=record.id, url=target.url)
        ParseDict(self._secrets(record, target_id, target) or {}, config)
        return config

    def _seal(self, record: TaskRecord, target_id: str, config: TaskPushNotificationConfig) -> str:
        fields = MessageToDict(config)
        secrets = {name: fields[name] for name in _SECRETS if name in fields}
        if not secrets:
            return ""
        ring = self._rings[record.client]
        sealed = ring.seal(encode_json(secrets), entropy(NONCE_BYTES), record.id, target_id)
        return b64encode(sealed.nonce + sealed.ciphertext).decode()

    def _secrets(
        self, record: TaskRecord, target_id: str, target: PushTarget
    ) -> dict[str, Any] | None:
        """What the client has set beside the URL; ``None`` if its token is another one now."""
        if not target.sealed:
            return {}
        ring = self._rings.get(record.client)
        if ring is None:
            return None
        content = b64decode(target.sealed)
        sealed = SealedBytes(ring.newest, content[:NONCE_BYTES], content[NONCE_BYTES:])
        try:
            secrets: dict[str, Any] = msgspec.json.decode(ring.open(sealed, record.id, target_id))
        except (KeyError, ValueError):
            return None
        return secrets

    # --- delivery ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Notify all targets until cancelled."""
        try:
            await self._book.wait_indexed()
            while True:
                for record, target_id in self._book.pending_targets():
                    if (record.id, target_id) not in self._served:
                        self._served.add((record.id, target_id))
                        self._tasks.start(self._serve(record, target_id))
                with suppress(TimeoutError):  # What was interrupted begins again.
                    async with asyncio.timeout(CHECK_S):
                        await self._book.wait_news()
        finally:
            await self._tasks.cancel()

    async def _serve(self, record: TaskRecord, target_id: str) -> None:
        """Send the events behind the last one that has arrived, one after the other."""
        try:
            target = record.targets[target_id]
            after = read_cursor(target.delivered)
            async with aclosing(self._book.follow(record, after)) as changes:
                async for change in changes:
                    present = record.targets.get(target_id)
                    if present is None or present.failed or present.url != target.url:
                        return
                    if _is_event(change) and not _has(present, change.cursor):
                        code = await self._deliver(record, target_id, change)
                        await self._record(record, target_id, change, code)
                        if code:
                            return
        except CodedError as error:
            log.warning("push notifications interrupted", extra={"code": error.code})
            await asyncio.sleep(CHECK_S)
        finally:
            self._served.discard((record.id, target_id))

    async def _record(
        self, record: TaskRecord, target_id: str, change: TaskChange, code: str
    ) -> None:
        present = record.targets.get(target_id)
        if present is not None:
            delivered = present.delivered if code else str(change.cursor)
            updated = replace(present, delivered=delivered, failed=code)
            await self._change(record, target_id, updated)

    async def _deliver(self, record: TaskRecord, target_id: str, change: TaskChange) -> str:
        """Empty once the target has the event, else why it gets none any more."""
        pause, reason = Backoff(*BACKOFF_S), ""
        for _ in range(ATTEMPTS_MAX):
            target = record.targets.get(target_id)
            if target is None or _has(target, change.cursor):
                return ""
            secrets = self._secrets(record, target_id, target)
            if secrets is None:
                return UNSEALABLE
            event = MessageToDict(to_stream_response(to_event(record, change)))
            try:
                status = await self._post(target.url, encode_json(event), _headers(secrets))
            except (ToolError, OSError) as error:
                reason = str(error)
            else:
                if 200 <= status < 300:
                    return ""
                reason = f"status {status}"
            log.info("push notification not taken", extra={"reason": reason, "task": record.id})
            await asyncio.sleep(pause.next_s())
        log.warning("push target given up", extra={"reason": reason, "task": record.id})
        return UNDELIVERABLE

    async def _post(self, url: str, body: bytes, headers: dict[str, str]) -> int:
        target = parse_url(url)
        exchange = HttpExchange(
            self._transport,
            HttpRequest("POST", target, headers, body),
            permits=self._transport.permits(target.scheme),
            body_bytes_max=ANSWER_BYTES_MAX,
            connect_timeout_s=CONNECT_S,
            cuts=True,
        )
        try:
            async with asyncio.timeout(2 * CONNECT_S):
                return (await run_on_own_thread(partial(exchange.run))).status
        except TimeoutError:
            exchange.abort()
            raise OSError("no answer in time") from None


def _headers(own: Mapping[str, Any]) -> dict[str, str]:
    headers = {"Content-Type": "application/json"}
    if token := own.get("token"):
        headers["X-A2A-Notification-Token"] = str(token)
    authentication = own.get("authentication", {})
    if authentication.get("scheme") and authentication.get("credentials"):
        headers["Authorization"] = f"{authentication['scheme']} {authentication['credentials']}"
    return headers


def _is_event(change: TaskChange) -> bool:
    is_message = change.state is None and not change.is_artifact
    return not is_message and change.state is not A2aState.SUBMITTED


def _has(target: PushTarget, cursor: Cursor) -> bool:
    last = read_cursor(target.delivered)
    return last is not None and last >= cursor
