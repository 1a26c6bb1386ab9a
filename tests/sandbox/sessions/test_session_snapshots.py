"""Snapshots: the same state has the same bytes, and only valid ones are opened."""

from __future__ import annotations

import hmac
import random

import msgspec
import pytest
from Crypto.Cipher import AES

from rookery.actors.sandbox import Sandbox, Tool
from rookery.actors.sandbox.sessions import Snapshot
from rookery.actors.sandbox.sessions.snapshot import (
    SnapshotHeader,
    open_snapshot,
    seal,
    snapshot_id,
)
from rookery.schemas.errors import Refused
from tests.sandbox.session_fixture import KEY, TOOLS, Stage, later

OFFERED = {tool.name: tool for tool in TOOLS}


@pytest.fixture
def taken(stage: Stage) -> Snapshot:
    stage.run("x = 1\ndef f(): return x")
    return stage.sandbox.snapshot(stage.name)


def refusal(sandbox: Sandbox, data: bytes, tools: tuple[Tool, ...] = TOOLS) -> str:
    with pytest.raises(Refused) as refused:
        sandbox.restore(data, tools=tools, session_id="never")
    assert "never" not in {meta.id for meta in sandbox.sessions()}
    return refused.value.code


def test_a_snapshot_is_named_by_its_content(stage: Stage, taken: Snapshot):
    assert taken.id == snapshot_id(taken.data)
    assert stage.sandbox.snapshot(stage.name) == taken
    stage.run("x = 2")
    assert stage.sandbox.snapshot(stage.name).id != taken.id


def test_the_same_runs_with_the_same_seed_make_the_same_bytes(sandbox: Sandbox):
    code = "import random, uuid, time\ny = [random.random(), uuid.uuid4().hex, time.time(), add(1)]"
    made = {}
    for number, seed in enumerate((b"one", b"one", b"two")):
        stage = Stage(sandbox, f"same{number}", seed=seed)
        outcome = stage.run(code + "\ny")
        header, saved = open_snapshot(
            KEY, sandbox.snapshot(stage.name).data, sandbox.require, OFFERED
        )
        header = msgspec.structs.replace(header, session_id="same")
        made[number] = seal(KEY, header, saved).id, outcome.metrics.instructions, outcome.result
        stage.end()
    assert made[0] == made[1]
    assert made[0][0] != made[2][0]
    assert made[0][2] != made[2][2]


def test_return_snapshot_names_the_snapshot_that_can_then_be_taken(stage: Stage):
    outcome = stage.run("x = 1", return_snapshot=True)
    assert outcome.snapshot_id == stage.sandbox.snapshot(stage.name).id
    assert stage.run("1/0", return_snapshot=True).snapshot_id is None


def test_a_session_is_restored_under_its_own_id_or_another(sandbox: Sandbox, taken: Snapshot):
    other = Stage(sandbox, "other", create=False)
    assert sandbox.restore(taken.data, tools=TOOLS, session_id="other") == "other"
    assert other.value("x = 5\nf()") == 5
    assert sandbox.restore(taken.data, tools=TOOLS, session_id="other") == "other"
    assert other.value("f()") == 1
    other.end()


def test_host_randomness_and_clock_travel_along(sandbox: Sandbox, stage: Stage):
    code = (
        "import random, uuid, time\n[random.SystemRandom().random(), uuid.uuid4().hex, time.time()]"
    )
    first = stage.value(code)
    taken = sandbox.snapshot(stage.name)
    second = stage.value(code)
    sandbox.restore(taken.data, tools=TOOLS)
    assert stage.value(code) == second != first


def test_every_damaged_snapshot_is_refused_before_use(sandbox: Sandbox, taken: Snapshot):
    chance = random.Random(7)
    data = taken.data
    for _ in range(300):
        at = chance.randrange(len(data))
        flipped = data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
        assert refusal(sandbox, flipped) == "SNAPSHOT_CORRUPT"
    for length in (0, 1, 7, 8, 12, 31, 32, 64, len(data) // 2, len(data) - 1):
        assert refusal(sandbox, data[:length]) == "SNAPSHOT_CORRUPT"
    assert refusal(sandbox, data + b"\0") == "SNAPSHOT_CORRUPT"


def derived(purpose: str) -> bytes:
    return hmac.digest(KEY, f"rookery.snapshot.{purpose}.v1".encode(), "sha256")


def decrypted(data: bytes) -> bytes:
    """The parts of a snapshot, by the layout that its module describes."""
    assert data.startswith(b"ROOKSEAL")
    tag = data[8:40]
    key = derived("encrypt")
    parts = AES.new(key, AES.MODE_CTR, nonce=b"", initial_value=tag[:16]).decrypt(data[40:])
    assert hmac.digest(derived("mac"), parts, "sha256") == tag
    return bytes(parts)


def of_an_older_version(data: bytes, key: bytes = KEY) -> bytes:
    """The snapshot as before images were encrypted."""
    sealed = b"ROOKSNAP" + decrypted(data)
    return sealed + hmac.digest(key, sealed, "sha256")


def test_a_snapshot_sealed_with_another_key_is_refused(sandbox: Sandbox, taken: Snapshot):
    foreign = Snapshot.reseal(KEY, b"wrong", taken.data)
    assert len(foreign) == len(taken.data)
    assert refusal(sandbox, foreign) == "SNAPSHOT_CORRUPT"
    assert Snapshot.reseal(b"wrong", KEY, foreign) == taken.data
    assert refusal(sandbox, of_an_older_version(taken.data, b"wrong")) == "SNAPSHOT_CORRUPT"


def test_a_snapshot_shows_nothing_of_its_session(sandbox: Sandbox, stage: Stage):
    stage.wait("x = await approve('canary')", answer=later("approve"))
    taken = sandbox.snapshot(stage.name).data
    for text in (stage.name.encode(), b"python", b"approve"):
        assert text not in taken
        assert text in decrypted(taken)


def test_a_snapshot_of_an_older_version_is_restored(sandbox: Sandbox, taken: Snapshot):
    older = of_an_older_version(taken.data)
    sandbox.restore(older, tools=TOOLS, session_id="older")
    again = Stage(sandbox, "older", create=False)
    assert again.value("f()") == 1
    again.end()
    assert Snapshot.reseal(KEY, KEY, older) == taken.data
    changed = older[:60] + bytes([older[60] ^ 1]) + older[61:]
    assert refusal(sandbox, changed) == "SNAPSHOT_CORRUPT"


def resealed(sandbox: Sandbox, taken: Snapshot, **header: object) -> bytes:
    found, saved = open_snapshot(KEY, taken.data, sandbox.require, OFFERED)
    changed: SnapshotHeader = msgspec.structs.replace(found, **header)
    return seal(KEY, changed, saved).data


def test_newer_and_foreign_snapshots_are_refused_by_their_own_codes(
    sandbox: Sandbox, taken: Snapshot
):
    newer = resealed(sandbox, taken, version=2)
    assert refusal(sandbox, newer) == "SNAPSHOT_VERSION_MISMATCH"
    foreign = resealed(sandbox, taken, build="0" * 64)
    assert refusal(sandbox, foreign) == "SNAPSHOT_FOREIGN_BUILD"
    foreign = resealed(sandbox, taken, language="typescript")
    assert refusal(sandbox, foreign) == "SNAPSHOT_FOREIGN_BUILD"


def test_an_unknown_magic_is_corrupt_even_if_sealed(sandbox: Sandbox, taken: Snapshot):
    sealed = b"SOMETHIN" + decrypted(taken.data)
    assert refusal(sandbox, sealed + hmac.digest(KEY, sealed, "sha256")) == "SNAPSHOT_CORRUPT"


def test_the_tools_of_a_snapshot_must_be_offered_again(sandbox: Sandbox, taken: Snapshot):
    more = (*TOOLS, Tool(name="more"))
    assert sandbox.restore(taken.data, tools=more, session_id="more") == "more"
    sandbox.destroy("more")
    mismatch = "SNAPSHOT_CAPABILITY_MISMATCH"
    assert refusal(sandbox, taken.data, TOOLS[1:]) == mismatch
    changed = (*TOOLS[:1], Tool(name="write", schema_digest="w2"), *TOOLS[2:])
    assert refusal(sandbox, taken.data, changed) == mismatch


def test_a_waiting_run_is_part_of_the_snapshot_and_of_nothing_else(sandbox: Sandbox, stage: Stage):
    stage.wait("x = await approve(1)", answer=later("approve"))
    first = sandbox.snapshot(stage.name)
    assert sandbox.snapshot(stage.name) == first
    for value in (1, 2):
        sandbox.restore(first.data, tools=TOOLS, session_id="again")
        again = Stage(sandbox, "again", create=False)
        assert again.resume(value).status == "ok"
        assert again.value("x") == value
    sandbox.destroy("again")
    assert stage.resume(3).status == "ok"
    assert stage.value("x") == 3


def test_an_image_larger_than_the_memory_limit_is_restored(sandbox: Sandbox, stage: Stage):
    stage.run("x = bytearray(40 << 20)\nx[-1] = 7")
    taken = sandbox.snapshot(stage.name)
    sandbox.restore(taken.data, tools=TOOLS)
    small = {"memory_mb": 20}
    assert stage.value("x[-1]", limits=small) == 7
    assert stage.code("y = bytearray(40 << 20)", limits=small) == "MEMORY_EXCEEDED"


def test_a_snapshot_of_a_session_that_did_nothing_is_small(sandbox: Sandbox, stage: Stage):
    assert len(sandbox.snapshot(stage.name).data) < 1000


# --- copies ---------------------------------------------------------------------------------------


def test_a_copy_is_the_snapshot_of_its_moment_whatever_runs_next(sandbox: Sandbox, stage: Stage):
    stage.run("x = 1")
    copy = sandbox.copy(stage.name).result()
    expected = sandbox.snapshot(stage.name)
    assert stage.value("x = 2\nx") == 2
    assert sandbox.seal(copy) == expected
    assert stage.value("x") == 2
    sandbox.restore(expected.data, tools=TOOLS)
    assert stage.value("x") == 1


def test_a_session_goes_on_from_the_image_of_its_copy(sandbox: Sandbox, stage: Stage):
    for number in range(3):
        stage.run(f"x = {number}")
    copy = sandbox.copy(stage.name).result()
    stage.run("y = x + 1")
    sandbox.seal(copy)
    later = sandbox.copy(stage.name).result()
    assert [len(one.history) for one in (copy, later)] == [3, 1]
    sandbox.restore(sandbox.seal(later).data, tools=TOOLS)
    assert stage.value("[x, y]") == [2, 3]


def test_a_copy_of_a_session_that_got_another_image_meanwhile_leaves_it(
    sandbox: Sandbox, stage: Stage
):
    stage.run("x = 1")
    copy = sandbox.copy(stage.name).result()
    stage.run("x = 2")
    sandbox.snapshot(stage.name)
    sandbox.seal(copy)
    assert sandbox.copy(stage.name).result().history == []
    sandbox.restore(sandbox.snapshot(stage.name).data, tools=TOOLS)
    assert stage.value("x") == 2


def test_a_session_is_copied_between_runs_only(sandbox: Sandbox, stage: Stage):
    stage.wait("x = await approve(1)", answer=later("approve"))
    with pytest.raises(Refused, match="GUARD_REJECTED"):
        sandbox.copy(stage.name).result()
    assert stage.resume(3).status == "ok"


def test_a_waiting_run_knows_what_it_executed(sandbox: Sandbox, stage: Stage):
    assert sandbox.run_instructions(stage.name) == 0
    stage.wait("x = await approve(1)", answer=later("approve"))
    executed = sandbox.run_instructions(stage.name)
    assert 0 < executed < stage.resume(3).metrics.instructions
    assert sandbox.run_instructions(stage.name) == 0
