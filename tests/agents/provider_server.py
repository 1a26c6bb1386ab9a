"""A server that speaks as OpenAI's and Anthropic's do, and counts what it is asked.

    python -m tests.agents.provider_server

It prints its port. Its model looks two things up, pays what they come to, and says the sum. A
prompt ``fault: KIND`` makes it fail. A question to ``/responses`` is a job, done when it is
fetched, or, if it says ``Slowly``, fetched twice. ``GET /requests`` lists all requests: ids, paths
and bodies.
"""

from __future__ import annotations

import asyncio
import json
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.request import urlopen

from tests.agents.question_counter import CountingProcess

__all__ = ["FAULTS", "ProviderServer"]

HOST = "127.0.0.1"
FAULTS = (
    *("429", "429-later", "500", "401", "400", "404", "quota", "overflow", "refusal"),
    *("garbage", "cut", "cut-stream", "cut-stream-late", "hang", "empty"),
)
PASSING = ("429-soon", "500", "garbage", "cut", "cut-stream", "cut-stream-late", "hang")
"""Those that a retry mends; a prompt ``once: KIND`` has them at the first attempt of each step."""


class ProviderServer(CountingProcess):
    """The process, from the test's side."""

    module = "tests.agents.provider_server"

    def requests(self) -> list[dict[str, Any]]:
        with urlopen(f"http://{HOST}:{self.port}/requests", timeout=60) as answer:
            found: list[dict[str, Any]] = json.loads(answer.read())
            return found

    def require(self, key: str) -> None:
        """Answer 401 to requests without this key."""
        with urlopen(f"http://{HOST}:{self.port}/require/{key}", timeout=60) as answer:
            answer.read()

    async def questions(self) -> list[str]:
        """All that were asked, in order: run, step and attempt."""
        found = await asyncio.to_thread(self.requests)
        return [request["id"].replace("/", " ") for request in found]

    def table(self, provider: str) -> str:
        """``[models.served]`` for this server; ``jobs``: OpenAI's, in the background."""
        if provider == "jobs":
            return f"{self.table('openai')}background = true\n"
        path = "/v1" if provider == "openai" else ""
        return (
            f'[models]\ndefault = "served"\n[models.served]\nprovider = "{provider}"\n'
            f'model = "test-model"\nbase_url = "http://{HOST}:{self.port}{path}"\n'
        )


# --- the process ----------------------------------------------------------------------------------

requests: list[dict[str, Any]] = []
required: list[str] = []
"""The key that a request must have."""


jobs: list[Job] = []


class Job:
    """A question that is worked on in the background, until it is fetched."""

    def __init__(self, body: dict[str, Any], text: str, calls: list[Any]) -> None:
        self._body, self._text, self._calls = body, text, calls
        self.fetched = 0

    def response(self, name: str) -> dict[str, Any]:
        """As OpenAI's endpoint of responses has it."""
        is_done = self.fetched > ("Slowly" in json.dumps(self._body["input"]))
        output: list[dict[str, Any]] = []
        if self._text:
            said = {"type": "output_text", "text": self._text, "annotations": []}
            of = {"id": "msg_1", "role": "assistant", "status": "completed", "content": [said]}
            output.append({"type": "message", **of})
        for number, (tool, arguments) in enumerate(self._calls):
            call = {"id": f"fc_{number}", "call_id": f"call_{number}", "name": tool}
            of = {"arguments": json.dumps(arguments), "status": "completed"}
            output.append({"type": "function_call", **call, **of})
        usage = {"input_tokens": 11, "output_tokens": 3, "total_tokens": 14}
        details = {"input_tokens_details": {"cached_tokens": 0}}
        details["output_tokens_details"] = {"reasoning_tokens": 0}
        return {
            "id": name,
            "object": "response",
            "created_at": 1,
            "status": "completed" if is_done else "queued",
            "background": True,
            "model": self._body["model"],
            "output": output if is_done else [],
            "usage": {**usage, **details} if is_done else None,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
        }


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if "/responses/" in self.path:
            self._send_job(self.path.rpartition("/")[2].partition("?")[0])
            return
        if self.path.startswith("/require/"):
            required[:] = [self.path.removeprefix("/require/")]
        self._send(200, requests)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = self.headers["X-Client-Request-Id"]
        key = self.headers["Idempotency-Key"]
        texts, results = ([], []) if "input" in body else _said(body)
        fault = next((text[7:] for text in texts if text.startswith("fault: ")), "")
        if name.endswith("/1"):
            once = next((text[6:] for text in texts if text.startswith("once: ")), "")
            fault = fault or once.partition(" ")[0]
        requests.append({"id": name, "key": key, "path": self.path, "body": body, "fault": fault})
        authorization = self.headers.get("Authorization", "").removeprefix("Bearer ")
        key = self.headers.get("X-Api-Key", authorization)
        if self.path.endswith("/responses"):
            jobs.append(Job(body, *_answer(_said_to_job(body))))
            self._send_job(f"resp_{len(jobs)}")
        elif required and key != required[0]:
            text = f"Incorrect API key provided: {key}."
            error = {"type": "authentication_error", "message": text, "code": "invalid_api_key"}
            self._send(401, {"type": "error", "error": error})
        elif not (fault and self._fail(fault, body)):
            self._say(body, *_answer(results))

    def _say(
        self, body: dict[str, Any], text: str, calls: list[Any], stop: str = "", pieces: int = 0
    ) -> None:
        """Answer, in one piece or as a stream; ``pieces``: how many of those before it is cut."""
        is_openai = self.path.endswith("/chat/completions")
        if not body.get("stream"):
            self._send(200, (_as_openai if is_openai else _as_anthropic)(body, text, calls, stop))
            return
        events = (_openai_events if is_openai else _anthropic_events)(body, text, calls, stop)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number, event in enumerate(events):
            if pieces and number == pieces:
                self.close_connection = True
                return
            self.wfile.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")
        self.wfile.write(b"0\r\n\r\n")

    def _send_job(self, name: str) -> None:
        """A job is done when it is fetched for the second time; then it has its answer."""
        number = int(name.removeprefix("resp_")) - 1
        if number >= len(jobs):
            self._send(404, {"error": {"message": "no such response", "type": "invalid"}})
            return
        jobs[number].fetched += self.command == "GET"
        self._send(200, jobs[number].response(name))

    def _fail(self, fault: str, body: dict[str, Any]) -> bool:
        """Fail as the fault says; false if it answers as if nothing were wrong."""
        error = {"type": "error", "error": {"type": "api_error", "message": fault, "code": None}}
        if fault in ("429-later", "429-soon"):
            self._send(429, error, retry_after="7" if fault == "429-later" else "1")
        elif fault.isdecimal():
            self._send(int(fault), error)
        elif fault == "overflow":
            kind = {"code": "context_length_exceeded", "type": "invalid_request_error"}
            error["error"] |= kind | {"message": "prompt is too long: 9 tokens > 8 maximum"}
            self._send(400, error)
        elif fault == "refusal":
            is_openai = "chat" in self.path
            self._say(body, "I would", [], "content_filter" if is_openai else "refusal")
        elif fault.startswith("cut-stream"):
            self._say(body, "I was about to say", [], pieces=5 if fault.endswith("late") else 3)
        elif fault == "quota" and "messages" in self.path:
            text = "Your credit balance is too low to access the API."
            error["error"] |= {"type": "invalid_request_error", "message": text}
            self._send(400, error)
        elif fault == "quota":
            error["error"] |= {"code": "insufficient_quota", "type": "insufficient_quota"}
            self._send(429, error)
        elif fault == "garbage":
            self._send_bytes(200, b"<html>not a model</html>")
        elif fault == "empty":
            self._say(body, "", [])
        elif fault == "cut":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b'{"id": "cut')
            self.close_connection = True
        else:
            time.sleep(60)
        return True

    def _send(self, status: int, body: object, retry_after: str = "") -> None:
        self._send_bytes(status, json.dumps(body).encode(), retry_after)

    def _send_bytes(self, status: int, body: bytes, retry_after: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if retry_after:
            self.send_header("Retry-After", retry_after)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nothing."""


def _said(body: dict[str, Any]) -> tuple[list[str], list[str]]:
    """The texts of users, and the results of this run's calls: those after the last text."""
    texts: list[str] = []
    results: list[str] = []
    for message in body["messages"]:
        content = message.get("content")
        if message["role"] == "tool":
            results.append(str(content))
        elif message["role"] == "user":
            for part in [content] if isinstance(content, str) else content:
                if isinstance(part, str) or part["type"] == "text":
                    texts.append(part if isinstance(part, str) else part["text"])
                    results = []
                else:
                    found = part["content"]
                    results.append(found if isinstance(found, str) else found[0]["text"])
    return texts[-1:], results


def _said_to_job(body: dict[str, Any]) -> list[str]:
    """The results of the calls after the last text of a user, of a question in the background."""
    results: list[str] = []
    for item in body["input"]:
        if item.get("type") == "function_call_output":
            results.append(str(item["output"]))
        elif item.get("role") == "user":
            results = []
    return results


def _answer(results: list[str]) -> tuple[str, list[tuple[str, dict[str, Any]]]]:
    """The text and the calls of the next step."""
    if not results:
        return "I look.", [("look", {"name": "tea"}), ("look", {"name": "cake"})]
    if len(results) == 2:
        return "", [("pay", {"amount": sum(map(int, results))}), ("beg", {"much": True})]
    return f"paid {results[2]}", []


def _as_openai(body: dict[str, Any], text: str, calls: list[Any], stop: str = "") -> dict[str, Any]:
    wanted = [
        {
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for number, (name, arguments) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": text or None}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": body.get("model", ""),
        "choices": [
            {
                "index": 0,
                "message": message | ({"tool_calls": wanted} if wanted else {}),
                "finish_reason": stop or ("tool_calls" if wanted else "stop"),
            }
        ],
        "usage": {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14},
    }


def _as_anthropic(
    body: dict[str, Any], text: str, calls: list[Any], stop: str = ""
) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    content += [
        {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": arguments}
        for number, (name, arguments) in enumerate(calls)
    ]
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": body.get("model", ""),
        "content": content,
        "stop_reason": stop or ("tool_use" if calls else "end_turn"),
        "stop_sequence": None,
        "usage": {"input_tokens": 11, "output_tokens": 3},
    }


def _openai_events(
    body: dict[str, Any], text: str, calls: list[Any], stop: str = ""
) -> list[bytes]:
    whole = _as_openai(body, text, calls, stop)
    (choice,) = whole["choices"]
    common = {key: whole[key] for key in ("id", "created", "model")}
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": word} for word in _words(text)]
    for number, call in enumerate(choice["message"].get("tool_calls", ())):
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        started = call | {"index": number, "function": {"name": name, "arguments": ""}}
        deltas.append({"tool_calls": [started]})
        for half in (arguments[:5], arguments[5:]):
            deltas.append({"tool_calls": [{"index": number, "function": {"arguments": half}}]})
    made = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    end = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
    made += [{"choices": [end]}, {"choices": [], "usage": whole["usage"]}]
    chunks = [{"object": "chat.completion.chunk", **common, **one} for one in made]
    return [*(f"data: {json.dumps(one)}\n\n".encode() for one in chunks), b"data: [DONE]\n\n"]


def _anthropic_events(
    body: dict[str, Any], text: str, calls: list[Any], stop: str = ""
) -> list[bytes]:
    whole = _as_anthropic(body, text, calls, stop)
    content, stop_reason, usage = whole["content"], whole["stop_reason"], whole["usage"]
    start = whole | {"content": [], "stop_reason": None, "usage": usage | {"output_tokens": 1}}
    made: list[dict[str, Any]] = [{"type": "message_start", "message": start}]
    for index, block in enumerate(content):
        is_text = block["type"] == "text"
        empty = block | ({"text": ""} if is_text else {"input": {}})
        pieces = (
            [{"type": "text_delta", "text": word} for word in _words(text)]
            if is_text
            else [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
        )
        made.append({"type": "content_block_start", "index": index, "content_block": empty})
        made += [{"type": "content_block_delta", "index": index, "delta": one} for one in pieces]
        made.append({"type": "content_block_stop", "index": index})
    end = {"stop_reason": stop_reason, "stop_sequence": None}
    made.append({"type": "message_delta", "delta": end, "usage": usage})
    made.append({"type": "message_stop"})
    return [f"event: {one['type']}\ndata: {json.dumps(one)}\n\n".encode() for one in made]


def _words(text: str) -> list[str]:
    return [word + " " for word in text.split(" ")[:-1]] + text.split(" ")[-1:] if text else []


def main() -> None:
    server = ThreadingHTTPServer((HOST, 0), Handler)
    server.daemon_threads = True
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
