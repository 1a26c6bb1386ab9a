"""A person logs in by the command line, at a real authorization server, for a run that waits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from rookery.bus import connect_sync
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from tests.leases.authorization_server import AuthorizationServer, Browser, authorization_server
from tests.nodes import access_to, clean_environment, node_on, sealing_key_of

HERE = str(Path(__file__).parents[2])
TIMEOUT_S = 60
DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
SANDBOX = ("--driver", "sandbox", "--tools", "tests.execution.credential_tools:login_registry")


def configure(folder: Path, authority: AuthorizationServer, provider: str) -> None:
    """Write the binding of the tool."""
    settings = authority.settings(provider)
    more = settings.pop("authorize_parameters", {})
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    lines += [f"authorize_parameters.{name} = {json.dumps(value)}" for name, value in more.items()]
    (folder / "rookery.toml").write_text("\n".join(["[bindings.mail]", *lines]))


@contextmanager
def run_that_waits(server: EmbeddedServer, folder: Path, realm: str) -> Iterator[None]:
    """A run that needs a login in the block, and has ended well after it."""
    with (
        node_on(server, realm, folder, *SANDBOX, PYTHONPATH=HERE),
        connect_sync(server.url_for(Role.OPERATOR, realm=realm), realm=realm) as client,
    ):
        waiting = client.begin("desk", "scheme_of()")
        for fact in client.events(key="desk"):
            if fact["type"] == "turn.parked.v1" and fact["code"] == "LEASE_REAUTH_REQUIRED":
                break
        yield
        assert waiting.result().result == "Bearer"


@contextmanager
def login(server: EmbeddedServer, folder: Path, realm: str) -> Iterator[subprocess.Popen[str]]:
    """The command in the block; it has succeeded after it."""
    command = [str(Path(sys.executable).with_name("rookery")), "leases", "login", "mail"]
    environment = clean_environment(folder) | sealing_key_of(server, realm)
    with subprocess.Popen(
        [*command, *access_to(server, realm)],
        cwd=folder,
        env={**environment, "PATH": os.environ["PATH"]},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        assert process.stdout is not None
        assert f"lease {realm}:mail has a credential" in process.stdout.read()
        assert process.wait(TIMEOUT_S) == 0


def next_line(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    return process.stderr.readline().strip()


def test_a_run_that_needs_a_login_goes_on_when_a_person_has_logged_in(
    server: EmbeddedServer, tmp_path: Path
):
    with authorization_server() as authority:
        configure(tmp_path, authority, "authorization_code")
        with (
            run_that_waits(server, tmp_path, "browsers"),
            login(server, tmp_path, "browsers") as command,
        ):
            address = Browser().log_in(next_line(command).removeprefix("open "))
            with urlopen(address, timeout=TIMEOUT_S) as page:
                assert b"close this page" in page.read()
        assert authority.counts() == {"authorization_code": 1}


def test_a_run_goes_on_when_a_person_has_confirmed_the_code_on_another_device(
    server: EmbeddedServer, tmp_path: Path
):
    """The command shows the code, and while it waits that it waits, why and how long."""
    with authorization_server() as authority:
        configure(tmp_path, authority, "device_code")
        with (
            run_that_waits(server, tmp_path, "devices"),
            login(server, tmp_path, "devices") as command,
        ):
            url = next_line(command).removeprefix("open ")
            code = next_line(command).removeprefix("and enter ").removesuffix("; waiting ...")
            assert len(code) >= 8
            assert code in url
            progress = next_line(command)
            assert progress.startswith("no login yet, 10 min left: ")
            assert progress.endswith("authorization_pending")
            Browser().log_in(url)
        assert authority.counts() == {DEVICE_GRANT: 2}
