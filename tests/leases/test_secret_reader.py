"""Static credentials and clients' secrets: read from where the settings say, and shown nowhere."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from rookery.actors.leases import Binding
from rookery.actors.leases.provider import LoginNeeded, Outcome, Renewed, RetryLater
from rookery.actors.leases.providers import SecretReader, create_providers
from rookery.schemas.errors import Failed
from rookery.schemas.machines.lease import LeaseKey
from rookery.schemas.protection.bindings import SecretSource

NOW = 1_000_000.0
STORED = {"stored": b"canary-stored", "binary": b"\xff\xfe"}


async def read_stored(name: str) -> bytes | None:
    if name == "away":
        raise Failed("SERVER_UNREACHABLE", "canary")
    return STORED.get(name)


def refresh(value: str, environ: dict[str, str] | None = None, **more: Any) -> Awaitable[Outcome]:
    shown = {"PATH": os.environ["PATH"], **(environ or {})}
    reader = SecretReader(read_stored, shown, [SecretSource.parse("env:HIDDEN")])
    settings = {"provider": "static", "value": value, **more}
    binding = Binding(key=LeaseKey("r", "b"), provider="static", settings=settings)
    return create_providers(reader, os.urandom)["static"].refresh(binding, None, now=NOW)


def outcome_of(value: str, environ: dict[str, str] | None = None, **more: Any) -> Outcome:
    async def scenario() -> Outcome:
        return await refresh(value, environ, **more)

    return asyncio.run(scenario())


def python(program: str) -> str:
    return f"command:{shlex.join([sys.executable, '-c', program])}"


def test_a_credential_comes_from_a_variable_a_file_a_command_or_the_realm(tmp_path: Path):
    file = tmp_path / "a file"
    file.write_text("canary-file\r\n")
    for source, value in {
        "env:TOKEN": "canary-env",
        f"file:{file}": "canary-file",
        python("print('canary-command')"): "canary-command",
        "secret:stored": "canary-stored",
    }.items():
        found = outcome_of(source, {"TOKEN": "canary-env"}, scheme="", lasts_s=300)
        assert isinstance(found, Renewed), source
        assert (found.credential.value, found.credential.scheme) == (value, "")
        assert found.credential.expires_at == NOW + 300
        assert "canary" not in repr(found)
    endless = outcome_of("env:TOKEN", {"TOKEN": "x"})
    assert isinstance(endless, Renewed)
    assert endless.credential.expires_at is None


def test_what_only_a_person_can_change_is_no_reason_to_try_again(tmp_path: Path):
    empty, large, pipe = (tmp_path / name for name in ("empty", "large", "pipe"))
    empty.write_text("\n")
    large.write_text("c" * (64 << 10) + "c")
    os.mkfifo(pipe)
    sources = ["env:ABSENT", "env:EMPTY", f"file:{tmp_path / 'absent'}", f"file:{tmp_path}"]
    sources += [f"file:{file}" for file in (empty, large, pipe)]
    sources += ["command:no-such-program", "secret:absent", "secret:binary"]
    sources += [python("print('c' * 1_000_000)"), python("")]
    for source in sources:
        found = outcome_of(source, {"EMPTY": ""})
        assert isinstance(found, LoginNeeded), (source, found)
    missing = outcome_of("secret:absent")
    assert isinstance(missing, LoginNeeded)
    assert "rookery secrets set absent" in missing.reason


def test_what_may_pass_is_tried_again_and_says_nothing_of_arguments():
    failing = "import sys; print('canary', file=sys.stderr); sys.exit(3)"
    for source in ("secret:away", python(failing)):
        found = outcome_of(source)
        assert isinstance(found, RetryLater), source
        assert "canary" not in found.reason


def test_a_command_ends_with_its_time_out_and_so_does_what_it_started(tmp_path: Path):
    sign, child = tmp_path / "sign", "import time; time.sleep(600)"
    program = (
        "import pathlib, subprocess, sys;"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}]);"
        f"pathlib.Path({str(sign)!r}).write_text(str(child.pid)); child.wait()"
    )

    async def scenario() -> None:
        waiting = asyncio.ensure_future(refresh(python(program), timeout_s=60))
        while not (sign.exists() and sign.read_text()):
            await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        while _is_alive(int(sign.read_text())):
            await asyncio.sleep(0.01)

    asyncio.run(scenario())
    slow = outcome_of("command:sleep 60", timeout_s=0.05)
    assert isinstance(slow, RetryLater)
    assert "the output of sleep took longer than 0.05 s" in slow.reason


def _is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_commands_that_hang_hold_up_nothing_else():
    async def scenario() -> None:
        waiting = [asyncio.ensure_future(refresh("command:sleep 60")) for _ in range(10)]
        await asyncio.sleep(0)
        assert isinstance(await refresh("secret:stored"), Renewed)
        assert not any(one.done() for one in waiting)
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(scenario())


def test_no_command_gets_a_variable_that_holds_a_secret_of_a_binding():
    program = "import os; print(os.environ.get('HIDDEN', 'none'), os.environ['SHOWN'])"
    found = outcome_of(python(program), {"HIDDEN": "canary", "SHOWN": "shown"})
    assert isinstance(found, Renewed)
    assert found.credential.value == "none shown"


@pytest.mark.parametrize(
    "text", ["canary", "", "env:", "file: ", "secret:a b", "command:'", "http://canary", "secret:"]
)
def test_what_names_no_source_is_refused_without_being_shown(text: str):
    with pytest.raises(ValueError, match=r"\w") as refused:
        SecretSource.parse(text)
    assert "canary" not in str(refused.value)
