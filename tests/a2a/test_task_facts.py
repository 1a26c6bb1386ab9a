"""Tasks as they follow from facts, and what of them reaches whom."""

from __future__ import annotations

import asyncio
import ipaddress
import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from a2a.utils.errors import InvalidParamsError

from rookery.ops.a2a import PushNetworks
from rookery.ops.a2a.http_gateway import AttendedRequests
from rookery.ops.a2a.messages import cursor_of, task_of, to_event
from rookery.ops.a2a.task_facts import (
    A2aState,
    Cursor,
    TaskChange,
    TaskRecord,
    TasksOfSession,
    read_cursor,
)
from rookery.ops.cli import main
from rookery.ops.gateways import read_tokens
from rookery.schemas.errors import Refused

TASK = "00000000-0000-7000-8000-00000000000a"
OTHER = "00000000-0000-7000-8000-00000000000b"


class Facts:
    """The facts of an agent, one message each."""

    def __init__(self) -> None:
        self.tasks, self._numbers = TasksOfSession(), count(1)

    def put(self, name: str, **fields: Any) -> list[TaskChange]:
        number = next(self._numbers)
        fact = {"type": name, "at_ms": 1_000 * number, "session": "coder"} | fields
        found = self.tasks.fold(fact | {"position": f"{number}.1"})
        return [] if found is None else found[1]

    def envelope(self, kind: str, id_: str, sender: str = "a2a-bob", **members: Any) -> Any:
        text = json.dumps({"kind": kind, "id": id_, "thread": OTHER} | members)
        arrival = {"text": text, "sender": f"{sender}@default"}
        return self.put("peer.envelope_classified.v1", item_id=id_, arrival=arrival)

    def begin(self, task: str = TASK, **message: Any) -> TaskRecord:
        content = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": []} | message}
        self.envelope("request", task, params=content)
        return self.tasks.by_id[task]

    def sent(self, name: str, **members: Any) -> list[TaskChange]:
        return self.put(name, corr_id=TASK, sent={"text": json.dumps(members)})


def states(record: TaskRecord) -> list[A2aState]:
    return [change.state for change in record.changes or () if change.state is not None]


def test_a_task_begins_with_its_request_and_ends_with_the_response():
    facts = Facts()
    record = facts.begin()
    assert (record.client, record.context_id, record.message_id) == ("bob", OTHER, "m")
    facts.put("peer.item_assigned.v1", item_id=TASK)
    facts.put("session.input_accepted.v1", item_id=TASK, run="run")
    facts.sent("peer.progress_sent.v1", phase="partial_result", result="half")
    artifact, end = facts.sent("peer.response_replied.v1", status="completed", result={"a": 1})
    assert (artifact.cursor, end.cursor) == (Cursor(5, 1, 0), Cursor(5, 1, 1))
    assert states(record) == [A2aState.SUBMITTED, A2aState.WORKING, A2aState.COMPLETED]
    assert facts.sent("peer.progress_sent.v1", phase="accepted") == [], "it has ended"
    task = task_of(record, record.changes or ())
    assert [one.parts[0].WhichOneof("content") for one in task.artifacts] == ["text", "data"]
    assert facts.begin().state is A2aState.COMPLETED, "the same request again changes nothing"


@pytest.mark.parametrize(
    ("error", "state"),
    [
        ({"code": "ValueError", "message": "no"}, A2aState.FAILED),
        ({"code": "CANCELLED"}, A2aState.CANCELED),
    ],
)
def test_an_error_says_how_a_task_ended(error: dict[str, str], state: A2aState):
    facts = Facts()
    record = facts.begin()
    facts.sent("peer.response_replied.v1", status="failed", error=error)
    assert record.state is state


def test_a_declined_request_is_a_rejected_task():
    facts = Facts()
    record = facts.begin()
    facts.sent("peer.declined.v1", error={"code": "PEER_QUEUE_FULL"})
    assert record.state is A2aState.REJECTED


@pytest.mark.parametrize(
    ("code", "state"),
    [
        ("WAITING_FOR_APPROVAL", A2aState.AUTH_REQUIRED),
        ("LEASE_REAUTH_REQUIRED", A2aState.AUTH_REQUIRED),
        ("RECOVERY_REQUIRED", A2aState.AUTH_REQUIRED),
        ("WAITING_FOR_PEER", A2aState.WORKING),
        ("NODE_DRAINED", A2aState.WORKING),
    ],
)
def test_a_parked_run_waits_for_a_person_or_goes_on_by_itself(code: str, state: A2aState):
    facts = Facts()
    record = facts.begin()
    facts.put("peer.item_assigned.v1", item_id=TASK)
    facts.put("session.input_accepted.v1", item_id=TASK, run="run")
    facts.put("turn.parked.v1", run="another", code="WAITING_FOR_APPROVAL")
    facts.put("turn.parked.v1", run="run", code=code)
    assert record.state is state
    facts.put("turn.unparked.v1", run="run")
    assert record.state is A2aState.WORKING


def test_a_program_that_receives_and_one_that_asks_wait_for_the_client():
    facts = Facts()
    record = facts.begin()
    facts.put("peer.receiver_waiting.v1", operation_id="o", pattern={"in_reply_to": TASK})
    assert record.state is A2aState.INPUT_REQUIRED
    facts.put("peer.item_assigned.v1", item_id=OTHER, operation_id="o")
    assert record.state is A2aState.WORKING
    facts.sent("peer.progress_sent.v1", phase="in_progress", result={"input_required": "Which?"})
    assert record.state is A2aState.INPUT_REQUIRED
    more = {"message": {"messageId": "n", "role": "ROLE_USER", "parts": [{"text": "x"}]}}
    facts.envelope("message", OTHER, body=more, in_reply_to=TASK)
    facts.put("peer.item_assigned.v1", item_id=OTHER)
    assert record.state is A2aState.WORKING
    facts.put("session.input_accepted.v1", item_id=OTHER, run="second")
    assert record.run_id == "second"


def test_a_message_has_the_first_task_that_it_has_begun_until_that_is_read_again():
    """Two gateways may begin one each. A task that is read again is another record."""
    facts = Facts()
    first, second = facts.begin(), facts.begin(OTHER)
    assert facts.tasks.find_message("bob", "m") is first
    assert facts.tasks.find_message("eve", "m") is None
    facts.tasks.drop(first)
    facts.tasks.drop(second)
    assert facts.tasks.find_message("bob", "m") is None
    assert facts.tasks.find_message("bob", "m") is not facts.begin()
    assert facts.tasks.find_message("bob", "m") is facts.tasks.by_id[TASK]


def test_what_is_no_message_of_this_client_changes_no_task():
    facts = Facts()
    record = facts.begin()
    body = {"message": {"messageId": "n"}}
    assert facts.envelope("message", OTHER, "a2a-ann", body=body, in_reply_to=TASK) == []
    assert facts.envelope("request", OTHER, "planner", params=body) == []
    assert facts.envelope("request", OTHER, params={"file": "x.py"}) == []
    assert facts.put("peer.envelope_classified.v1", item_id="raw") == []
    assert list(facts.tasks.by_id) == [TASK]
    assert len(record.changes or ()) == 1


@pytest.mark.parametrize(
    ("result", "kinds"),
    [
        ("text", ["text"]),
        (
            {"parts": ["a", {"url": "https://a.example", "mediaType": "text/plain"}]},
            ["text", "url"],
        ),
        ({"parts": [{"raw": "dGNr", "filename": "a.txt"}]}, ["raw"]),
        ({"parts": [{"nothing": 1}]}, ["data"]),
        ({"parts": []}, ["data"]),
        ({"parts": ["a"], "total": 3}, ["data"]),
        ([1, 2], ["data"]),
        (False, ["data"]),
    ],
)
def test_a_result_becomes_parts_by_its_form(result: Any, kinds: list[str]):
    facts = Facts()
    record = facts.begin()
    (change, _) = facts.sent("peer.response_replied.v1", status="completed", result=result)
    event: Any = to_event(record, change)
    assert [part.WhichOneof("content") for part in event.artifact.parts] == kinds


def test_an_artifact_of_a_known_id_is_continued_or_replaced():
    facts = Facts()
    record = facts.begin()
    for text, append in (("a", False), ("b", True), ("c", True)):
        result = {"artifactId": "x", "parts": [text], "append": append}
        facts.sent("peer.progress_sent.v1", phase="partial_result", result=result)
    (artifact,) = task_of(record, record.changes or ()).artifacts
    assert "".join(part.text for part in artifact.parts) == "abc"
    last = {"artifactId": "x", "parts": ["whole"]}
    facts.sent("peer.response_replied.v1", status="completed", result=last)
    (artifact,) = task_of(record, record.changes or ()).artifacts
    assert [part.text for part in artifact.parts] == ["whole"]


def test_a_cursor_is_read_back_and_nothing_else_is():
    assert read_cursor(str(Cursor(12, 3, 1))) == Cursor(12, 3, 1)
    for text in ("", "12", "1.2", "1.2.x", "1.2.3.4", "-1.2.3", "1.2." + "9" * 40, "¹.2.3"):
        assert read_cursor(text) is None
    assert cursor_of({"result": {"message": {"parts": []}}}) == ""
    assert cursor_of({"error": {"code": 1}}) == ""
    assert cursor_of([1]) == ""


def test_the_work_on_a_request_ends_with_its_client():
    async def scenario() -> None:
        has_ended = asyncio.Event()

        async def app(_scope: Any, receive: Any, _send: Any) -> None:
            await receive()
            try:
                await asyncio.Event().wait()
            finally:
                has_ended.set()

        coming = iter([{"type": "http.request"}, {"type": "http.disconnect"}])

        async def receive() -> Any:
            return next(coming)

        async def send(_message: Any) -> None:
            raise AssertionError("nothing is sent to a client that has gone")

        await AttendedRequests(app)({"type": "http"}, receive, send)
        assert has_ended.is_set()

    asyncio.run(scenario())


# --- where notifications may go, and the tokens of clients ----------------------------------------


def test_notifications_go_to_public_addresses_and_named_networks_only():
    networks = PushNetworks(["10.1.0.0/16"])
    inside, public = ipaddress.ip_address("10.1.2.3"), ipaddress.ip_address("8.8.8.8")
    private, own = ipaddress.ip_address("10.2.0.1"), ipaddress.ip_address("127.0.0.1")
    assert networks.transport.permits("https")(public)
    assert not networks.transport.permits("http")(public), "not without TLS"
    for scheme in ("http", "https"):
        assert networks.transport.permits(scheme)(inside)
        assert not networks.transport.permits(scheme)(private)
        assert not networks.transport.permits(scheme)(own)
    with pytest.raises(InvalidParamsError, match="is not https"):
        PushNetworks([]).check("http://a.example/hook")
    with pytest.raises(ValueError, match="nowhere"):
        PushNetworks(["nowhere"])


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.touch(mode=0o600)
    return path


@pytest.mark.parametrize(
    "text",
    ["", "# none\n", "bob\n", "bob short\n", f"b/b {'x' * 32}\n", f"a {'x' * 32}\nb {'x' * 32}\n"],
)
def test_a_file_without_names_and_tokens_is_refused(token_file: Path, text: str):
    token_file.write_text(text)
    with pytest.raises(Refused) as refused:
        read_tokens(token_file)
    assert refused.value.code == "INVALID_ARGUMENT"
    assert "openssl rand" in str(refused.value.hint)


def test_the_command_says_what_is_wrong_before_it_serves(
    token_file: Path, capsys: pytest.CaptureFixture[str]
):
    token_file.write_text(f"bob {'x' * 32}\n")
    for more, word in (
        (["--push-network", "here"], "--push-network"),
        (["--url", "ftp://x"], "--url"),
        (["--http", "a:b"], "--http"),
    ):
        assert main(["a2a", "coder", "--token-file", str(token_file), *more]) != 0
        assert word in capsys.readouterr().err
    token_file.chmod(0o644)
    assert main(["a2a", "coder", "--token-file", str(token_file)]) != 0
    assert "chmod 600" in capsys.readouterr().err
