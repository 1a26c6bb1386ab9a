"""Webhooks to a real HTTP server, and answers through the callback of a node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from http.client import HTTPConnection
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec
import pytest

from rookery.actors.approvals.dispatchers.dispatchers import WebhookDispatcher
from rookery.actors.approvals.dispatchers.protocol import (
    Decision,
    DispatchResult,
    Pending,
    Unavailable,
)
from rookery.actors.daemon_threads import DaemonThreadPool
from rookery.actors.keys.webhooks import TOLERANCE_MS, ReplayGuard, WebhookKey
from rookery.ops.approval_dispatchers import (
    BODY_BYTES_MAX,
    PATH,
    HttpPost,
    WebhookCallback,
    WebhookCallbackServer,
)
from rookery.schemas.approvals.records import DecideApproval
from rookery.schemas.errors import Failed, Refused
from tests.approvals.dispatchers.dispatch_fixtures import ANSWER, ASKED_ID, REQUEST, TERMS, decided
from tests.tools.builtin.web_server import Line, Web, answer, bytes_of, redirect

NOW_MS = 1_763_000_000_123
SECRET = "whsec_" + "c2hhcmVkIGJ5IHR3byBzaWRlcywgYnkgbm8gb3RoZXI="
KEY = WebhookKey(SECRET)
OTHER_KEY = WebhookKey("b3RoZXI" * 8)
PENDING = b'{"outcome":"pending"}'


@pytest.fixture
def web() -> Iterator[Web]:
    served = Web()
    yield served
    served.stop()


def signed(body: bytes, key: WebhookKey = KEY, message_id: str = ASKED_ID, at_ms: int = NOW_MS):
    """A page with this reply, signed."""
    headers = [f"{name}: {value}" for name, value in key.sign(message_id, body, at_ms).items()]
    return answer(body, *headers)


def posted(web: Web, pauses_s: Sequence[float] = (), try_s: float = 10.0) -> DispatchResult:
    """The outcome of a dispatch to this server."""
    threads = DaemonThreadPool(2)
    post = HttpPost(f"http://127.0.0.1:{web.port}/ask", threads, try_s=try_s)
    dispatcher = WebhookDispatcher(post, KEY, "default", now_ms=lambda: NOW_MS, pauses_s=pauses_s)
    try:
        return asyncio.run(dispatcher.dispatch(REQUEST, TERMS))
    finally:
        threads.shutdown()


# --- out ------------------------------------------------------------------------------------------


def test_a_request_is_signed_over_its_id_its_time_and_its_body(web: Web):
    web.pages["/ask"] = answer(status="202 Accepted")
    assert posted(web) == Pending()
    (asked,) = web.asked
    headers = {name.lower(): value for name, value in asked.headers.items()}
    assert asked.line == "POST /ask HTTP/1.1"
    assert headers["content-type"] == "application/json"
    assert KEY.verify(headers, asked.body, NOW_MS) == ASKED_ID
    assert msgspec.json.decode(asked.body)["request_digest"] == TERMS.request_digest
    for part in ("webhook-id", "webhook-timestamp", "webhook-signature"):
        with pytest.raises(Refused):
            KEY.verify(headers | {part: headers[part] + "1"}, asked.body, NOW_MS)
    with pytest.raises(Refused):
        KEY.verify(headers, asked.body + b" ", NOW_MS)


def test_the_signature_is_the_one_of_the_standard():
    """The example of the Standard Webhooks specification's libraries."""
    key = WebhookKey("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    headers = key.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", b'{"test": 2432232314}', 1614265330000)
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_an_immediate_decision_is_a_signed_response(web: Web):
    web.pages["/ask"] = signed(decided())
    came = posted(web)
    assert isinstance(came, Decision)
    assert came.answer == ANSWER


@pytest.mark.parametrize(
    "page",
    [
        answer(decided()),
        signed(decided(), OTHER_KEY),
        signed(decided(), message_id="ask/s.other"),
        signed(decided(), at_ms=NOW_MS - TOLERANCE_MS - 1_000),
        signed(b"yes"),
    ],
)
def test_a_response_that_is_not_signed_for_this_request_decides_nothing(
    web: Web, page: Callable[[Line], None]
):
    web.pages["/ask"] = page
    with pytest.raises(Refused):
        posted(web)


def test_a_failed_post_is_repeated_under_the_same_id_and_a_refusal_is_not(web: Web):
    pages = iter([answer(status="503 Busy"), bytes_of(b""), answer(status="429 Slow"), answer()])

    def next_page(line: Line) -> None:
        next(pages)(line)

    web.pages["/ask"] = next_page
    assert posted(web, pauses_s=(0, 0, 0)) == Pending()
    ids = {asked.headers["webhook-id"] for asked in web.asked}
    assert (ids, len(web.asked)) == ({ASKED_ID}, 4)

    web.pages["/ask"] = answer(status="403 No")
    assert posted(web, pauses_s=(0,)) == Unavailable("webhook.status_403")
    assert len(web.asked) == 5


def test_a_redirect_is_not_followed(web: Web):
    web.pages["/ask"] = redirect(f"http://127.0.0.1:{web.port}/elsewhere", 307)
    web.pages["/elsewhere"] = signed(decided())
    assert posted(web) == Unavailable("webhook.status_307")
    assert len(web.asked) == 1


def test_a_slow_webhook_response_counts_as_unreachable(web: Web):
    web.pages["/ask"] = lambda line: line.pause(30)
    assert posted(web, pauses_s=(0,), try_s=0.2) == Unavailable("webhook.unreachable")
    assert len(web.asked) == 2


def test_a_webhook_response_that_is_too_large_counts_as_unreachable(web: Web):
    web.pages["/ask"] = answer(b"x" * (1 << 17))
    assert posted(web) == Unavailable("webhook.unreachable")


@pytest.mark.parametrize("secret", ["", "whsec_", "short", "not base64 at all, is it?", "YQ=="])
def test_a_short_or_malformed_secret_is_refused(secret: str):
    with pytest.raises(Refused, match="CONFIG_INVALID"):
        WebhookKey(secret)


# --- the callback --------------------------------------------------------------------------------


class CallbackReply(NamedTuple):
    status: int
    body: Any

    @property
    def code(self) -> str:
        return str(self.body["error"]["code"])


class CallbackClient:
    """A callback, the answers it delivered, and a client that posts to it."""

    def __init__(self) -> None:
        self.answers: list[tuple[DecideApproval, str]] = []
        self.errors: list[Exception] = []
        self.server = WebhookCallbackServer(
            "127.0.0.1", 0, WebhookCallback(KEY, lambda: NOW_MS, self._decide)
        )

    def _decide(self, given: DecideApproval, message_id: str) -> object:
        if self.errors:
            raise self.errors.pop()
        self.answers.append((given, message_id))
        return {"status": "approved"}

    def post(
        self,
        body: bytes,
        headers: dict[str, str] | None = None,
        *,
        message_id: str = "m1",
        path: str = PATH,
        method: str = "POST",
    ) -> CallbackReply:
        if headers is None:
            headers = KEY.sign(message_id, body, NOW_MS)
        place = urlsplit(self.server.url)
        connection = HTTPConnection(str(place.hostname), int(place.port or 0), timeout=90)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            said = response.read()
            is_json = response.headers.get_content_type() == "application/json"
            return CallbackReply(response.status, msgspec.json.decode(said) if is_json else None)
        finally:
            connection.close()


@pytest.fixture
def callback() -> Iterator[CallbackClient]:
    found = CallbackClient()
    with found.server:
        yield found


BODY = msgspec.json.encode(ANSWER)


def test_a_signed_answer_reaches_its_approval_unchanged(callback: CallbackClient):
    assert callback.post(BODY) == CallbackReply(200, {"status": "approved"})
    assert callback.answers == [(ANSWER, "m1")]


def test_an_answer_is_delivered_once(callback: CallbackClient):
    callback.post(BODY)
    again = callback.post(BODY)
    assert (again.status, again.code) == (409, "IDEMPOTENCY_KEY_REUSED")
    assert callback.post(BODY, message_id="m2").status == 200
    assert [message_id for _, message_id in callback.answers] == ["m1", "m2"]


def test_an_answer_that_failed_in_the_node_may_be_sent_again(callback: CallbackClient):
    callback.errors.append(Failed("NODE_DRAINING", "not now"))
    assert callback.post(BODY).status == 503
    assert callback.post(BODY).status == 200
    callback.errors.append(Refused("SELF_APPROVAL", "not you"))
    refused = callback.post(BODY, message_id="m2")
    assert (refused.status, refused.code) == (403, "SELF_APPROVAL")
    assert callback.post(BODY, message_id="m2").status == 409


@pytest.mark.parametrize(
    "headers",
    [
        {},
        OTHER_KEY.sign("m1", BODY, NOW_MS),
        KEY.sign("m1", BODY + b" ", NOW_MS),
        KEY.sign("m1", BODY, NOW_MS) | {"webhook-id": "m2"},
        KEY.sign("m1", BODY, NOW_MS) | {"webhook-timestamp": str(NOW_MS // 1_000 + 1)},
        KEY.sign("m1", BODY, NOW_MS - TOLERANCE_MS - 1_000),
        KEY.sign("m1", BODY, NOW_MS + TOLERANCE_MS + 1_000),
        KEY.sign("m1", BODY, NOW_MS) | {"webhook-signature": "v1,"},
        KEY.sign("m1", BODY, NOW_MS) | {"webhook-signature": "v2,\u00e9"},
    ],
)
def test_a_callback_with_an_old_or_invalid_signature_is_refused(
    callback: CallbackClient, headers: dict[str, str]
):
    reply = callback.post(BODY, headers)
    assert (reply.status, reply.code) == (401, "UNAUTHORIZED")
    assert callback.answers == []


@pytest.mark.parametrize("body", [b"[]", b"yes", b'{"decision":"approved","why":1}', b"\xff"])
def test_a_signed_but_invalid_answer_is_refused_with_a_reason(
    callback: CallbackClient, body: bytes
):
    assert callback.post(body).status == 400
    assert callback.answers == []


def test_other_paths_methods_and_sizes_are_refused(callback: CallbackClient):
    assert callback.post(BODY, path="/").status == 404
    assert callback.post(BODY, method="GET").status == 501
    assert callback.post(b"x" * (BODY_BYTES_MAX + 1)).status == 413
    assert callback.post(BODY, {"Transfer-Encoding": "chunked"}).status == 411
    assert callback.answers == []


def test_an_id_is_evicted_when_its_signature_expires():
    seen = ReplayGuard()
    assert seen.add("a", 0)
    assert not seen.add("a", 2 * TOLERANCE_MS)
    assert seen.add("a", 2 * TOLERANCE_MS + 1)
