"""Hooks that are served by HTTP: a signed post, and an answer that is signed, too.

Both have the signature of Standard Webhooks, by a secret of the realm. What is signed names the
realm, the invocation and the direction, so that no request can be given back as an answer, and no
answer counts for another invocation. Redirects are not followed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final

from rookery.actors.hooks.executors import AnsweredExecutor
from rookery.actors.keys.webhooks import PostWebhook, WebhookKey
from rookery.schemas.digest import digest_json
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.hooks import HookRegistration, HttpHook

__all__ = ["ReadSecret", "WebhookExecutor", "message_id"]

SECRET_MS: Final = 5_000
"""How long a secret that was read is used; a rotated one counts from then on."""

ReadSecret = Callable[[str], Awaitable[bytes | None]]


def message_id(realm: str, invocation: str, direction: str) -> str:
    """The id that a post (``ask``) or its answer (``answer``) is signed with."""
    return f"hook.{direction}.{digest_json([realm, invocation])[:32]}"


class WebhookExecutor(AnsweredExecutor):
    """By a server."""

    def __init__(
        self,
        posts: Callable[[str], PostWebhook],
        read_secret: ReadSecret,
        registration: HookRegistration,
        *,
        realm: str,
        now_ms: Callable[[], int],
    ) -> None:
        """``posts``: what posts to a URL."""
        super().__init__(registration, realm=realm, now_ms=now_ms)
        assert isinstance(registration.executor, HttpHook)
        self._hook, self._posts, self._read_secret = registration.executor, posts, read_secret
        self._post: PostWebhook | None = None
        self._key: tuple[WebhookKey, int] | None = None

    async def _send(self, invocation: str, body: bytes, patience_s: float) -> bytes:
        del patience_s
        key = await self._current_key()
        if self._post is None:
            self._post = self._posts(self._hook.url)
        asked = message_id(self._realm, invocation, "ask")
        posted = await self._post(key.sign(asked, body, self._now_ms()), body)
        if posted is None:
            raise Failed("NO_ANSWER", "its server gave no answer")
        if not HTTPStatus.OK <= posted.status < HTTPStatus.MULTIPLE_CHOICES:
            raise Failed("NO_ANSWER", f"its server answered with status {posted.status}")
        try:
            answered = key.verify(posted.headers, posted.body, self._now_ms())
        except Refused as refusal:
            raise Refused("HOOK_ANSWER_INVALID", f"the answer: {refusal.message}") from None
        if answered != message_id(self._realm, invocation, "answer"):
            text = "the answer is signed for something else than this invocation"
            raise Refused("HOOK_ANSWER_INVALID", text)
        return bytes(posted.body)

    def _hint(self, hook: str) -> str:
        return f"check the server of hook {hook}, or register it in mode off"

    async def _current_key(self) -> WebhookKey:
        now_ms = self._now_ms()
        if self._key is None or now_ms - self._key[1] > SECRET_MS:
            stored = await self._read_secret(self._hook.secret)
            if stored is None:
                hint = f"rookery secrets set {self._hook.secret}"
                raise Refused("SECRET_NOT_FOUND", "the secret of the hook is not stored", hint=hint)
            self._key = WebhookKey(stored.decode(errors="replace").strip()), now_ms
        return self._key[0]
