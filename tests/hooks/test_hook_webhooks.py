"""Hooks that a server answers: the post is signed, and only a signed answer to it counts."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any, NamedTuple

import pytest

from rookery.actors.keys.webhooks import WebhookKey
from rookery.ops.approval_dispatchers import HttpPost
from rookery.ops.hooks.webhook import WebhookExecutor, message_id
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import CodedError
from rookery.schemas.hook_protocol import HookAnswer, decode_invocation
from rookery.schemas.hooks import HttpHook
from rookery.schemas.seed.hook import HookPoint, HookResponseClass
from tests.hooks.hook_fixtures import registration, spec
from tests.hooks.test_hook_answers import DENY, ID, INPUT

NOW_MS = 1_700_000_000_000
SECRET = "whsec_" + b64encode(b"s" * 32).decode()
KEY, OTHER = WebhookKey(SECRET), WebhookKey("whsec_" + b64encode(b"o" * 32).decode())
GOOD = encode_json(HookAnswer(invocation_id=ID, response=DENY))
ANSWER = message_id("default", ID, "answer")


class Reply(NamedTuple):
    body: bytes
    headers: dict[str, str]
    status: int = 200


def signed(body: bytes, named: str = ANSWER, key: WebhookKey = KEY, now_ms: int = NOW_MS) -> Reply:
    return Reply(body, key.sign(named, body, now_ms))


Answers = Callable[[dict[str, str], bytes], Reply]


@contextmanager
def server(answer: Answers) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            reply = answer(headers, body)
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(reply.body)))
            self.end_headers()
            self.wfile.write(reply.body)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = Thread(target=running.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{running.server_port}/hook"
        finally:
            running.shutdown()
            thread.join()


def asked(url: str, what: str = "invoke", secret: bytes | None = SECRET.encode()) -> Any:
    """What the executor makes of the server's answer, or the code of its error."""
    hook = registration(
        spec(HookPoint.BEFORE_TOOL_CALL, HookResponseClass.DENY),
        executor=HttpHook(url=url, secret="guard"),
    )

    async def read_secret(name: str) -> bytes | None:
        assert name == "guard"
        return secret

    async def scenario() -> Any:
        with ThreadPoolExecutor() as threads:
            executor = WebhookExecutor(
                lambda url: HttpPost(url, threads, try_s=5),
                read_secret,
                hook,
                realm="default",
                now_ms=lambda: NOW_MS,
            )
            given = () if what == "probe" else (INPUT,)
            return await getattr(executor, what)(*given)

    try:
        return asyncio.run(scenario())
    except CodedError as error:
        return error.code


def test_the_post_is_signed_and_its_signed_answer_counts():
    seen = []

    def answer(headers: dict[str, str], body: bytes) -> Reply:
        assert KEY.verify(headers, body, NOW_MS) == message_id("default", ID, "ask")
        seen.append(decode_invocation(body))
        return signed(GOOD)

    with server(answer) as url:
        assert asked(url) == DENY
        assert asked(url, "invoke_dry") == DENY
    assert [(one.input, one.realm, one.dry_run) for one in seen] == [
        (INPUT, "default", False),
        (INPUT, "default", True),
    ]


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (Reply(GOOD, {}), "HOOK_ANSWER_INVALID"),
        (signed(GOOD, key=OTHER), "HOOK_ANSWER_INVALID"),
        (signed(GOOD)._replace(body=GOOD + b" "), "HOOK_ANSWER_INVALID"),
        (signed(GOOD, message_id("default", ID, "ask")), "HOOK_ANSWER_INVALID"),
        (signed(GOOD, message_id("other", ID, "answer")), "HOOK_ANSWER_INVALID"),
        (signed(GOOD, message_id("default", "run/x/y/z", "answer")), "HOOK_ANSWER_INVALID"),
        (signed(GOOD, now_ms=NOW_MS - 600_000), "HOOK_ANSWER_INVALID"),
        (signed(b"{}"), "HOOK_ANSWER_INVALID"),
        (signed(GOOD)._replace(status=500), "NO_ANSWER"),
        (signed(GOOD)._replace(status=404), "NO_ANSWER"),
        (Reply(b"", {"Location": "http://127.0.0.1:1/"}, 307), "NO_ANSWER"),
        (signed(b"x" * 1_000_000), "NO_ANSWER"),
    ],
    ids=range(12),
)
def test_what_is_not_signed_for_this_invocation_counts_for_nothing(reply: Reply, code: str):
    with server(lambda _headers, _body: reply) as url:
        assert asked(url) == code


def test_a_post_that_comes_back_is_no_answer():
    def reflect(headers: dict[str, str], body: bytes) -> Reply:
        return Reply(body, {name: one for name, one in headers.items() if "webhook" in name})

    with server(reflect) as url:
        assert asked(url) == "HOOK_ANSWER_INVALID"


def test_a_server_that_is_away_is_found_when_the_hook_is_registered():
    with server(lambda _headers, _body: signed(GOOD)) as url:
        """It is gone then."""
    assert asked(url, "probe") == "HOOK_EXECUTOR_MISSING"
    assert asked(url, "probe", secret=None) == "SECRET_NOT_FOUND"
    assert asked(url, "probe", secret=b"short") == "CONFIG_INVALID"
