"""A result too large for a message: every reply has its status and its blob, our clients and the
shell return it whole, and no client gets an error for an executed run.
"""

from __future__ import annotations

import asyncio
import json
from hashlib import sha3_256
from typing import Any

import pytest

from rookery.bus import connect_sync
from tests.execution.entry_points import DOORS, PATIENCE_S
from tests.execution.realm_fixture import Serving
from tests.nodes import access_to, rookery_here
from tests.stock_client import Fields, stock

OURS = ("our_client", "our_client_by_the_inbox", "our_client_without_a_loop", "the_shell")
WIDE = {"max_stdout_bytes": 1 << 20}
FITS = "echo(1)\n'x' * 900_000"
LARGE: dict[str, tuple[str, str, str]] = {
    "text": ("echo(1)\n'x' * 2_000_000", "x" * 2_000_000, ""),
    "accents": ("echo(1)\n'é' * 700_000", "é" * 700_000, ""),
    "stdout": ("echo(1)\nprint('\\n' * 900_000, end='')\n'said'", "said", "\n" * 900_000),
}
"""Program, result and stdout."""


def kept(driving: Serving, digest: str) -> Fields:
    """Read a blob with a stock client, as the contract says."""

    async def scenario() -> bytes:
        async with stock(driving.server, driving.realm) as client:

            async def piece(number: int) -> Any:
                subject = f"rookery.{driving.realm}.read.blobs.{digest}.{number}"
                return await client.nats.request(subject, b"", timeout=PATIENCE_S)

            first = await piece(0)
            count = int(first.headers["Rookery-Chunks"])
            others = [await piece(number) for number in range(1, count)]
            return b"".join(found.data for found in (first, *others))

    data = asyncio.run(scenario())
    assert sha3_256(data).hexdigest() == digest
    whole: Fields = json.loads(data)
    return whole


@pytest.mark.parametrize("name", DOORS)
def test_every_entry_point_returns_a_large_result_with_its_status(driving: Serving, name: str):
    door, session = DOORS[name], f"large-{name.replace('_', '-')}"
    fits = door(driving, f"{session}-fits", {"code": FITS, "limits": WIDE})
    assert (fits["status"], len(fits["result"]), "result_blob" in fits) == ("ok", 900_000, False)

    for what, (code, result, stdout) in LARGE.items():
        answer = door(driving, f"{session}-{what}", {"code": code, "limits": WIDE})
        assert (answer["status"], answer["error"]) == ("ok", None)
        if name not in OURS:
            run_id, named = answer["run_id"], answer["result_blob"]
            assert (answer["result"], answer["metrics"]["external_calls_count"]) == (None, 1)
            answer = kept(driving, named) | {"run_id": run_id}
        assert "result_blob" not in answer
        assert (answer["result"] == result, answer["stdout"] == stdout) == (True, True)
        assert [call["name"] for call in answer["external_calls"]] == ["echo"]


def test_a_duplicate_gets_a_large_result_again(driving: Serving):
    code, result, _ = LARGE["text"]
    with connect_sync(driving.url, realm=driving.realm) as client:
        first = client.run("large-again", code, message_id="large-1")
        assert client.run("large-again", code, message_id="large-1") == first
        assert client.submit("large-again", code, message_id="large-1").result(PATIENCE_S) == first
    assert first.result == result


def test_the_shell_prints_a_large_result_as_any_other(driving: Serving):
    code, result, _ = LARGE["accents"]
    where = access_to(driving.server, driving.realm)
    said = rookery_here(driving.folder, "run", "-e", code, "--session", "large-text", *where)
    assert (said.code, said.err, json.loads(said.out) == result) == (0, "", True)


def test_the_output_of_a_cancelled_run_is_returned_at_any_size(driving: Serving):
    code = "print('\\n' * 900_000, end='')\necho(1)\nwhile True: pass"
    limits = WIDE | {"cpu_ms": 60_000, "wall_ms": 60_000}
    with connect_sync(driving.url, realm=driving.realm) as client:
        handle = client.submit("large-cancelled", code, limits=limits)
        answered = (fact for fact in handle.events() if fact["type"] == "tool.completed.v1")
        next(answered)
        answered.close()
        handle.cancel(now=True)
        answer = handle.result(PATIENCE_S)
    assert (answer.status, answer.error and answer.error.code) == ("cancelled", "CANCELLED")
    assert answer.stdout == "\n" * 900_000
