"""The key of a realm's secrets: where it may be, what moves under it, and how it is replaced."""

from __future__ import annotations

import asyncio
import shlex
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from rookery.bus.clock import entropy
from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.memory.storage import MemorySecrets
from rookery.bus.roles import Role
from rookery.bus.sealed_secrets import KEY_BYTES, KeyRing, RingSeal
from rookery.ops.config import Config, ServerConfig
from rookery.ops.keys import ConfiguredKeys, NodeSecrets, SecretsRotation
from rookery.ops.keys.sealing_keys import open_secrets
from rookery.ops.server import ConfiguredServer
from rookery.schemas.errors import Refused
from tests.ops.fixtures import Realm

CHECKOUT = Path(__file__).parents[2]


def new_ring() -> KeyRing:
    return KeyRing([entropy(KEY_BYTES)])


def keys_in(path: Path) -> ConfiguredKeys:
    return ConfiguredKeys("", path, {})


def code_of(keys: ConfiguredKeys) -> str:
    with pytest.raises(Refused) as refused:
        keys.read()
    return refused.value.code


@asynccontextmanager
async def bus_of(realm: Realm) -> AsyncIterator[JetStreamBus]:
    bus = JetStreamBus(realm.server.url_for(Role.NODE, realm=realm.name), realm=realm.name)
    await bus.start()
    try:
        yield bus
    finally:
        await bus.stop()


# --- sources --------------------------------------------------------------------------------------


def test_the_key_comes_from_a_file_a_variable_a_command_or_a_credential(tmp_path: Path):
    ring = new_ring().with_key(entropy(KEY_BYTES))
    file = tmp_path / "key file"
    file.write_text(ring.text)
    file.chmod(0o600)
    environ = {"KEY": ring.text, "CREDENTIALS_DIRECTORY": str(tmp_path)}
    command = f"command:cat {shlex.quote(str(file))}"
    for setting in (str(file), "env:KEY", "credential:key file", command):
        keys = ConfiguredKeys(setting, tmp_path / "default", environ)
        assert keys.read().ids == ring.ids, setting
        assert not any(line in keys.origin for line in ring.text.split())
    assert not (tmp_path / "default").exists()


def test_a_key_that_is_missing_or_no_key_is_refused_without_being_shown(tmp_path: Path):
    nothing = {
        "env:KEY": "SEALING_KEY_MISSING",
        "credential:key": "SEALING_KEY_MISSING",
        str(tmp_path / "no file"): "SEALING_KEY_MISSING",
        "command:false": "SEALING_KEY_INVALID",
        "command:no-such-program": "SEALING_KEY_INVALID",
        "command:'": "SEALING_KEY_INVALID",
        "command:/": "SEALING_KEY_INVALID",
        "command:true": "SEALING_KEY_INVALID",
        str(tmp_path): "SEALING_KEY_INVALID",
    }
    for setting, code in nothing.items():
        assert code_of(ConfiguredKeys(setting, tmp_path / "default", {})) == code, setting
    for text in ("", "canary", "ab" * 31, f"{'ab' * 32}\n{'ab' * 33}", "é"):
        keys = ConfiguredKeys("env:KEY", tmp_path, {"KEY": text or " "})
        with pytest.raises(Refused, match="SEALING_KEY_INVALID") as refused:
            keys.read()
        assert "canary" not in f"{refused.value} {refused.value.hint}"
    for setting in ("env:", "command: "):
        with pytest.raises(Refused, match="CONFIG_INVALID"):
            ConfiguredKeys(setting, tmp_path, {})


def test_a_file_that_others_may_read_is_refused(tmp_path: Path):
    file = tmp_path / "key"
    file.write_text(new_ring().text)
    file.chmod(0o640)
    assert code_of(keys_in(file)) == "SEALING_KEY_INVALID"


def test_nodes_of_one_server_find_one_file_however_they_name_it(realm: Realm, tmp_path: Path):
    store = str(realm.server.store)
    file = realm.server.store / f"{realm.name}.sealing-key"
    for url in ("", realm.server.address, realm.server.url_for(Role.NODE, realm=realm.name)):
        assert (
            ConfiguredServer(Config(realm=realm.name, store=store, url=url)).sealing_key_path
            == file
        )
    away = Config(realm="r", store=str(tmp_path / "store"), url="nats://example:4222")
    assert ConfiguredServer(away).sealing_key_path == tmp_path / "store.keys" / "r.sealing-key"
    server = ServerConfig(credentials_file=str(tmp_path / "node.json"))
    assert (
        ConfiguredServer(replace(away, server=server)).sealing_key_path
        == tmp_path / "keys" / "r.sealing-key"
    )


def test_processes_that_start_together_make_one_key_file(tmp_path: Path):
    async def scenario() -> None:
        file = tmp_path / "keys" / "realm.sealing-key"
        store = MemorySecrets()
        opened = await asyncio.gather(
            *(NodeSecrets.open(store, "default", keys_in(file)) for _ in range(8))
        )
        assert len({one.snapshots for one in opened}) == 1
        assert len({one.values.text for one in opened}) == 1
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert [one.name for one in file.parent.iterdir()] == [file.name]

    asyncio.run(scenario())


def test_no_key_is_made_over_the_secrets_of_another(tmp_path: Path):
    async def scenario() -> None:
        store, lost = MemorySecrets(), tmp_path / "lost"
        await NodeSecrets.open(store, "default", keys_in(tmp_path / "key"))
        with pytest.raises(Refused, match="SEALING_KEY_MISSING"):
            await NodeSecrets.open(store, "default", keys_in(lost))
        assert not lost.exists()
        lost.write_text(new_ring().text)
        lost.chmod(0o600)
        with pytest.raises(Refused, match="SEALING_KEY_MISSING"):
            await NodeSecrets.open(store, "default", keys_in(lost))

    asyncio.run(scenario())


# --- realms of older versions ---------------------------------------------------------------------


def test_what_an_older_version_stored_in_clear_and_sealed_with_its_file_stays_readable(
    realm: Realm, tmp_path: Path
):
    async def scenario() -> None:
        file, former = tmp_path / "key", new_ring()
        file.write_text(former.text)
        file.chmod(0o600)
        value = RingSeal(former, realm.name, entropy).seal(b"5", "session/s", "pay/card")
        async with bus_of(realm) as bus:
            await bus.secrets.put("snapshots", 0, b"k" * KEY_BYTES)
            opened = await NodeSecrets.open(bus.secrets, realm.name, keys_in(file))
            assert opened.snapshots == b"k" * KEY_BYTES
            assert await bus.secrets.list() == [("snapshots", 1), ("values", 1)]
            again = await NodeSecrets.open(bus.secrets, realm.name, keys_in(file))
            seal = RingSeal(again.values, realm.name, entropy)
            assert seal.open(value, "session/s", "pay/card") == b"5"
            assert seal.seal(b"6", "session/s", "pay/card").key_id != former.newest

    asyncio.run(scenario())


# --- rotation -------------------------------------------------------------------------------------


def test_a_rotation_that_is_killed_after_each_of_its_changes_loses_no_secret(
    realm: Realm, tmp_path: Path
):
    file = tmp_path / "key"
    url = realm.server.url_for(Role.NODE, realm=realm.name)

    async def values() -> tuple[bytes, str, bytes | None]:
        async with bus_of(realm) as bus:
            opened = await NodeSecrets.open(bus.secrets, realm.name, keys_in(file))
            sealed = await open_secrets(bus.secrets, realm.name, keys_in(file))
            await sealed.put("lease", 7, b"token")
            return opened.snapshots, opened.values.text, await sealed.get("lease", 7)

    before = asyncio.run(values())
    (former,) = keys_in(file).read().ids
    kills = 0
    while keys_in(file).read().ids[0] == former:
        command = [sys.executable, "-m", "tests.ops.rotation_kill", url, realm.name, str(file)]
        ended = subprocess.run(command, cwd=CHECKOUT, check=False, timeout=60)
        assert ended.returncode == -signal.SIGKILL
        kills += 1
        assert asyncio.run(values()) == before
    assert kills == 5, "a key is added, three secrets are sealed again, a key is removed"
    assert len(keys_in(file).read().ids) == 1


def test_a_node_finishes_a_rotation_that_was_killed_and_no_other(realm: Realm, tmp_path: Path):
    file = tmp_path / "key"
    url = realm.server.url_for(Role.NODE, realm=realm.name)
    command = [sys.executable, "-m", "tests.ops.rotation_kill", url, realm.name, str(file)]

    async def scenario() -> None:
        async with bus_of(realm) as bus:
            node = await NodeSecrets.open(bus.secrets, realm.name, keys_in(file))
            former = keys_in(file).read()
            for kills in (1, 2):
                for _ in range(kills):
                    ended = await asyncio.to_thread(
                        subprocess.run, command, cwd=CHECKOUT, check=False, timeout=60
                    )
                    assert ended.returncode == -signal.SIGKILL
                assert len(keys_in(file).read().ids) == 2
                with keys_in(file).locked():  # Another process is at it.
                    await node.finish_rotation()
                    assert len(keys_in(file).read().ids) == 2
                await node.finish_rotation()
                (newest,) = keys_in(file).read().ids
                assert newest not in former.ids
                await node.check()
                assert node.unavailable_reason == ""
            both = keys_in(file).read().with_key(entropy(KEY_BYTES))
            file.write_text(both.text)  # As the page says for nodes with files of their own.
            await node.finish_rotation()
            assert keys_in(file).read().ids == both.ids
            again = await NodeSecrets.open(bus.secrets, realm.name, keys_in(file))
            assert (again.snapshots, again.values.text) == (node.snapshots, node.values.text)
        assert [one.name for one in tmp_path.iterdir()] == ["key"]

    asyncio.run(scenario())


def test_the_last_line_of_a_key_file_seals_also_if_it_is_repeated():
    first, second = entropy(KEY_BYTES), entropy(KEY_BYTES)
    ring = KeyRing.parse(f"{first.hex()}\n{second.hex()}\n{first.hex()}\n")
    assert ring.newest == KeyRing([first]).newest
    assert len(ring.ids) == 2


def test_a_key_that_rookery_cannot_change_is_replaced_by_the_second_one_of_its_source(
    tmp_path: Path,
):
    async def scenario() -> None:
        store, environ = MemorySecrets(), {"KEY": new_ring().text}
        before = ConfiguredKeys("env:KEY", tmp_path, environ)
        opened = await NodeSecrets.open(store, "default", before)
        with pytest.raises(Refused, match=r"INVALID_ARGUMENT.*cannot add"):
            await SecretsRotation.perform(await open_secrets(store, "default", before), before)
        environ["KEY"] += new_ring().text
        both = ConfiguredKeys("env:KEY", tmp_path, environ)
        rotated = await SecretsRotation.perform(await open_secrets(store, "default", both), both)
        assert (rotated.resealed, rotated.removed) == (2, ())
        environ["KEY"] = environ["KEY"].splitlines()[-1]
        after = ConfiguredKeys("env:KEY", tmp_path, environ)
        assert (await NodeSecrets.open(store, "default", after)).snapshots == opened.snapshots

    asyncio.run(scenario())


def test_a_realm_is_rotated_and_the_doctor_says_where_its_key_is(realm: Realm, tmp_path: Path):
    path = realm.server.store / f"{realm.name}.sealing-key"

    async def begin() -> None:
        async with bus_of(realm) as bus:
            await NodeSecrets.open(bus.secrets, realm.name, keys_in(path))

    def finding() -> tuple[str, str, str]:
        report = realm.rookery("doctor", "--json").json
        (found,) = (one for one in report["findings"] if one["check"] == "secrets")
        return found["verdict"], found["code"], found["detail"]

    asyncio.run(begin())
    former = keys_in(path).read()
    verdict, _, detail = finding()
    assert verdict == "ok"
    assert str(path) in detail
    assert former.newest in detail
    listed = realm.rookery("secrets", "list", "--json").json
    assert [(one["name"], one["generation"], one["key_id"]) for one in listed] == [
        ("snapshots", 1, former.newest),
        ("values", 1, former.newest),
    ]
    rotated = realm.rookery("secrets", "rotate", "--json").json
    assert (rotated["resealed"], rotated["removed"]) == (2, [former.newest])
    assert {one["key_id"] for one in realm.rookery("secrets", "list", "--json").json} == {
        rotated["key_id"]
    }
    with keys_in(path).locked():
        assert "CONFLICT" in realm.rookery("secrets", "rotate").err
    keys_in(path).replace(keys_in(path).read().with_key(entropy(KEY_BYTES)))
    assert finding()[0] == "warn"
    keys_in(path).replace(former)
    assert finding()[:2] == ("fail", "SEALING_KEY_MISSING")
    refused = realm.rookery("secrets", "rotate")
    assert "SEALING_KEY_MISSING" in refused.err
    assert keys_in(path).read().ids == former.ids, "no new key beside a wrong one"
