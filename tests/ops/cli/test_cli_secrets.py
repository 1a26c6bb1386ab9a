"""``rookery secrets set / remove``: values come from a prompt, stdin or a file, and nothing shows
them."""

from __future__ import annotations

import asyncio
import os
import pty
import subprocess
from contextlib import suppress
from pathlib import Path

from rookery.bus.clock import entropy
from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.roles import Role
from rookery.bus.sealed_secrets import SealedSecrets
from rookery.ops.keys import ConfiguredKeys, NodeSecrets
from tests.ops.fixtures import ROOKERY, Ended, Realm

CANARY = "canary-5f2a"


def keys_of(realm: Realm) -> ConfiguredKeys:
    return ConfiguredKeys("", realm.server.store / f"{realm.name}.sealing-key", {})


def begin(realm: Realm) -> None:
    """What the first node of the realm does."""

    async def scenario() -> None:
        bus = JetStreamBus(realm.server.url_for(Role.NODE, realm=realm.name), realm=realm.name)
        await bus.start()
        await NodeSecrets.open(bus.secrets, realm.name, keys_of(realm))
        await bus.stop()

    asyncio.run(scenario())


def value_of(realm: Realm, name: str) -> tuple[int, bytes] | None:
    async def scenario() -> tuple[int, bytes] | None:
        bus = JetStreamBus(realm.server.url_for(Role.NODE, realm=realm.name), realm=realm.name)
        await bus.start()
        try:
            sealed = SealedSecrets(bus.secrets, realm.name, keys_of(realm), entropy)
            return await sealed.newest(f"secret/{name}")
        finally:
            await bus.stop()

    return asyncio.run(scenario())


def names(realm: Realm) -> list[str]:
    return [one["name"] for one in realm.rookery("secrets", "list", "--json").json]


def set_from_stdin(realm: Realm, name: str, value: bytes) -> Ended:
    done = subprocess.run(
        [*ROOKERY, "secrets", "set", name],
        env=realm.environment,
        cwd=realm.home,
        input=value,
        capture_output=True,
        check=False,
    )
    return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())


def set_at_a_prompt(realm: Realm, name: str, typed: bytes) -> tuple[int, str]:
    """At a terminal; its exit code and all that the terminal showed."""
    terminal, theirs = pty.openpty()
    shown = b""
    with subprocess.Popen(
        [*ROOKERY, "secrets", "set", name],
        env=realm.environment,
        cwd=realm.home,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    ) as process:
        os.close(theirs)
        while b"not shown" not in shown:
            shown += os.read(terminal, 1_024)
        os.write(terminal, typed)
        with suppress(OSError):  # The terminal ends with its process.
            while piece := os.read(terminal, 1_024):
                shown += piece
    os.close(terminal)
    return process.returncode, shown.decode()


def test_a_secret_is_stored_replaced_listed_and_removed(realm: Realm, tmp_path: Path):
    begin(realm)
    file = tmp_path / "value"
    file.write_text(f"{CANARY}\r\n")
    first = realm.rookery("secrets", "set", "git-hub", "--file", str(file))
    assert (first.code, first.out) == (0, "stored secret:git-hub, generation 1\n")
    assert value_of(realm, "git-hub") == (1, CANARY.encode())
    assert set_from_stdin(realm, "git-hub", b"line one\nline two\n").code == 0
    assert value_of(realm, "git-hub") == (2, b"line one\nline two")
    assert set_at_a_prompt(realm, "typed", f"{CANARY}\n".encode())[0] == 0
    assert value_of(realm, "typed") == (1, CANARY.encode())
    assert names(realm) == ["secret:git-hub", "secret:typed", "snapshots", "values"]
    table = realm.rookery("secrets", "list")
    assert "secret:git-hub" in table.out
    assert realm.rookery("secrets", "remove", "git-hub").code == 0
    assert names(realm) == ["secret:typed", "snapshots", "values"]
    gone = realm.rookery("secrets", "remove", "git-hub", "--json")
    assert (gone.code, gone.json["error"]["code"]) == (4, "SECRET_NOT_FOUND")


def test_no_value_is_an_argument_and_none_is_shown(realm: Realm, tmp_path: Path):
    begin(realm)
    typed = realm.rookery("secrets", "set", "name", CANARY)
    assert typed.code == 2
    code, shown = set_at_a_prompt(realm, "name", f"{CANARY}\n".encode())
    assert code == 0
    assert "stored secret:name, generation 1" in shown
    assert CANARY not in shown
    stored = [path for path in realm.server.store.rglob("*") if path.is_file()]
    assert stored
    assert not [path for path in stored if CANARY.encode() in path.read_bytes()]


def test_a_value_that_nothing_could_use_and_a_wrong_name_are_refused(realm: Realm, tmp_path: Path):
    begin(realm)
    before = names(realm)
    file = tmp_path / "value"
    for value in (b"", b"\n", b"c" * 65_537):
        file.write_bytes(value)
        refused = realm.rookery("secrets", "set", "name", "--file", str(file))
        assert refused.code == 2
        assert "INVALID_ARGUMENT" in refused.err
    file.write_bytes(b"c" * 65_536 + b"\n")
    assert realm.rookery("secrets", "set", "full", "--file", str(file)).code == 0
    for name in ("a b", "", "x" * 65, "../values"):
        for command in (["set", name, "--file", str(tmp_path)], ["remove", name]):
            assert realm.rookery("secrets", *command).code == 2, name
    assert realm.rookery("secrets", "set", "name", "--file", str(tmp_path / "no")).code == 2
    assert realm.rookery("secrets", "remove", "values").code == 4
    assert names(realm) == ["secret:full", *before]


def test_a_rotation_seals_what_people_stored_again(realm: Realm):
    begin(realm)
    set_from_stdin(realm, "name", CANARY.encode())
    assert realm.rookery("secrets", "rotate").code == 0
    assert value_of(realm, "name") == (1, CANARY.encode())
