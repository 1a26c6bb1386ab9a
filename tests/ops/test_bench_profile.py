"""The profile of a real node counts what the server holds afterwards. No time is looked at."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from rookery.bus.client import Client
from rookery.bus.nats import Connection
from rookery.bus.subjects import Subjects
from rookery.ops.bench.harness.harness import Harness, NodeProcess
from rookery.ops.bench.harness.process_usage import ThreadUsage, usage_here, usage_of
from rookery.ops.bench.harness.result_rows import describe_machine
from rookery.ops.bench.profile import CALL, RUN
from rookery.ops.bench.profile.profile import BENCH, costs, count_now, count_syncs, profile_node
from tests.ops.forked_benches import fork_process

JOURNAL = Subjects("default").journal_stream
RUNS = 3


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Harness, NodeProcess]]:
    """A node that executes runs."""
    with Harness("always", share=0.01, start=fork_process) as harness, harness.node("runs") as node:
        yield harness, node


def test_the_counts_of_a_run_are_what_the_journal_says(served: tuple[Harness, NodeProcess]):
    async def count(
        harness: Harness, node: NodeProcess
    ) -> tuple[dict[str, tuple[float, str]], int]:
        connection = Connection(harness.admin_url, name=BENCH)
        await connection.open()
        async with Client(harness.client_url) as client:
            await client.run("s", "1+1")
            before = await count_now(connection, node, harness.server_pid)
            for _ in range(RUNS):
                assert (await client.run("s", "1+1")).result == 2
            after = await count_now(connection, node, harness.server_pid)
        first = before.streams[JOURNAL].messages
        info = await connection.api(f"STREAM.INFO.{JOURNAL}")
        stored = [
            await connection.api(f"STREAM.MSG.GET.{JOURNAL}", {"seq": sequence})
            for sequence in range(first + 1, info["state"]["last_seq"] + 1)
        ]
        families = Counter(message["message"]["subject"].split(".")[3] for message in stored)
        assert families["turn"] >= RUNS
        await connection.close()
        return costs(before, after, RUNS), len(stored)

    found, stored = asyncio.run(count(*served))
    assert found[f"appended to {JOURNAL}, messages"] == (pytest.approx(stored / RUNS), "")
    assert found[f"stored in {JOURNAL}, bytes"][0] > 0
    assert found["published by rookery-client, messages"] == (1, "")
    assert found["published by rookery, messages"][0] >= stored / RUNS
    roles = {name for name in found if name.startswith("CPU, node: ")}
    assert {"CPU, node: bus loop", "CPU, node: sandbox"} <= roles


def test_a_profile_holds_both_works_and_only_steady_rows_are_recorded(
    served: tuple[Harness, NodeProcess],
):
    profile = profile_node(*served, calls=1)
    rows = {(row.work, row.name): row for row in profile.rows}
    assert rows[RUN, f"appended to {JOURNAL}, messages"].value >= 2
    assert rows[CALL, f"appended to {JOURNAL}, messages"].value > 0
    for row in profile.rows:
        assert (row.ratio is None) == (row.unit != "ms")
    recorded = {row.name for row in profile.record_rows()}
    assert f"profile, 1+1: appended to {JOURNAL}, messages" in recorded
    assert not any("involuntary" in name or "p99" in name for name in recorded)
    assert profile.machine.keys() == describe_machine(os.getloadavg()).keys()


def test_syncs_are_counted_or_there_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write = "import os, sys\nfor line in sys.stdin: os.fsync(file)"
    code = f"file = open({str(tmp_path / 'file')!r}, 'wb')\n{write}"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        with count_syncs(process.pid, tmp_path) as count:
            process.stdin.write("\n\n\n")
            process.stdin.close()
            process.wait()
    assert count.reason or count.syncs == 3

    monkeypatch.setenv("PATH", str(tmp_path))
    with count_syncs(os.getpid(), tmp_path) as without:
        pass
    assert (without.syncs, without.reason[:23]) == (0, "strace is not installed")


def test_a_process_knows_the_roles_of_its_threads():
    before = usage_here()
    sum(range(1_000_000))
    used = usage_here().since(before)
    (main,) = (thread for thread in used.threads if thread.role == "main thread")
    assert isinstance(main, ThreadUsage)
    assert main.cpu_s > 0
    assert usage_of(os.getpid()).voluntary > 0
