"""The examples of hooks: their file is accepted, and their functions say what their text says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.error import URLError

import msgspec
import pytest
from msgspec.structs import replace

from rookery.actors.hooks import deny, modify_arguments
from rookery.actors.hooks.registration import check_registrations
from rookery.ops.cli.rendering.fact_words import response_words
from rookery.ops.examples import hooks
from rookery.ops.examples.hooks import cedar, opa, payments
from rookery.ops.hooks import HookProcess, read_hooks
from rookery.schemas.errors import Refused
from rookery.schemas.ids import encode_typed_text
from rookery.schemas.seed.hook import HookResponseClass
from rookery.schemas.seed.refs import DestinationRef
from tests.hooks.hook_fixtures import RESPONSES
from tests.hooks.test_hook_answers import INPUT


def with_content(content: Any) -> Any:
    return replace(INPUT, view=replace(INPUT.view, content=content))


def test_the_file_of_the_walk_is_valid_and_its_hook_is_served():
    found = read_hooks(Path(hooks.__file__).with_name("guard.toml"))
    check_registrations(found)
    assert [one.spec.hook_id.as_str() for one in found] == ["cap-payments", "no-eve"]
    assert len(payments.tools) == 1
    answer = payments.cap_payments(with_content({"amount": 500}))
    assert answer == modify_arguments({"amount": 100}, "amount 500 capped at 100")


def test_a_process_without_functions_to_serve_does_not_start():
    with pytest.raises(Refused, match="no function that is a hook"):
        HookProcess(None, payments.tools.hooks)  # type: ignore[arg-type] # It is not read.


@contextmanager
def policy_agent(reasons: list[str]) -> Iterator[tuple[str, list[Any]]]:
    """A server that answers as an Open Policy Agent does."""
    asked: list[Any] = []

    class Agent(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200 if self.path == "/v1/data/rookery/deny" else 404)
            self.end_headers()
            self.wfile.write(json.dumps({"result": reasons}).encode())

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with HTTPServer(("127.0.0.1", 0), Agent) as server:
        thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


def test_the_guard_of_a_policy_agent_refuses_what_the_agent_has_reasons_against(
    monkeypatch: pytest.MonkeyPatch,
):
    call = with_content({"amount": 5})
    for reasons, answer in ([], None), (["too much"], deny("opa", "too much")):
        with policy_agent(reasons) as (url, asked):
            monkeypatch.setattr(opa, "AGENT", url)
            assert opa.ask_opa(call) == answer
            assert asked == [{"input": {"tool": "", "run": "run", "args": {"amount": 5}}}]
    with pytest.raises(URLError):
        opa.ask_opa(call)


def of_tool(name: str, **arguments: Any) -> Any:
    destination = DestinationRef.new(name)
    return replace(with_content(arguments), destination=destination)


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        (of_tool("local/pay", to="Bob", amount=100, note=None), None),
        (of_tool("local/pay", to="Ann", amount=500), None),
        (of_tool("local/pay", to="Bob", amount=500), deny("cedar", "forbidden by policy1")),
        (of_tool("local/read", amount=500), None),
    ],
    ids=["small", "unless", "forbidden", "other tool"],
)
def test_the_guard_of_cedar_refuses_what_a_policy_forbids(call: Any, answer: Any):
    assert cedar.ask_cedar(call) == answer


def test_the_guard_of_cedar_fails_at_what_its_policies_cannot_decide_on():
    with pytest.raises(ValueError, match="failed to build request"):
        cedar.ask_cedar(of_tool("local/pay", to="Bob", amount=0.5))
    with pytest.raises(ValueError, match="does not have the attribute `amount`"):
        cedar.ask_cedar(of_tool("local/pay", to="Bob"))


# --- words ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", HookResponseClass)
def test_every_response_has_words(word: HookResponseClass):
    response = msgspec.to_builtins(RESPONSES[word], enc_hook=encode_typed_text)
    assert response_words(response).startswith(f"{response['type']}: ")


def test_the_words_of_a_response_have_its_codes_and_summaries():
    inputs = [{"redacted_summary": "a rate"}, {"redacted_summary": "a limit"}]
    assert response_words({"type": "inject_context", "payload": inputs}).endswith("a rate; a limit")
    refusal = {"code": "c", "redacted_summary": "s"}
    assert response_words({"type": "deny", "payload": refusal}) == "deny: c: s"
