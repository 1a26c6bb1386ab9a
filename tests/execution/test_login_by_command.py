"""A person logs in by the command line, at a real authorization server, for a run that waits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

from rookery.bus import connect_sync
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from tests.leases.authorization_server import Browser, authorization_server
from tests.nodes import access_to, clean_environment, node_on, sealing_key_of

HERE = str(Path(__file__).parents[2])
REALM = "logins"
TIMEOUT_S = 60


def test_a_run_that_needs_a_login_goes_on_when_a_person_has_logged_in(
    server: EmbeddedServer, tmp_path: Path
):
    with authorization_server() as authority:
        settings = authority.settings("authorization_code")
        lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
        lines = [line for line in lines if not line.startswith("authorize_parameters")]
        lines.append('authorize_parameters = {prompt = "consent"}')
        (tmp_path / "rookery.toml").write_text("\n".join(["[bindings.mail]", *lines]))
        flags = (
            "--driver",
            "sandbox",
            "--tools",
            "tests.execution.credential_tools:login_registry",
        )
        with (
            node_on(server, REALM, tmp_path, *flags, PYTHONPATH=HERE),
            connect_sync(server.url_for(Role.OPERATOR, realm=REALM), realm=REALM) as client,
        ):
            waiting = client.begin("desk", "scheme_of()")
            for fact in client.events(key="desk"):
                if fact["type"] == "turn.parked.v1" and fact["code"] == "LEASE_REAUTH_REQUIRED":
                    break
            log_in(server, tmp_path)
            assert waiting.result().result == "Bearer"
        counts = authority.counts()
        assert counts == {"authorization_code": 1}


def log_in(server: EmbeddedServer, folder: Path) -> None:
    command = [str(Path(sys.executable).with_name("rookery")), "leases", "login", "mail"]
    environment = clean_environment(folder) | sealing_key_of(server, REALM)
    with subprocess.Popen(
        [*command, *access_to(server, REALM)],
        cwd=folder,
        env={**environment, "PATH": os.environ["PATH"]},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        address = Browser().log_in(process.stderr.readline().removeprefix("open ").strip())
        with urlopen(address, timeout=TIMEOUT_S) as page:
            assert b"close this page" in page.read()
        assert "lease logins:mail has a credential" in process.stdout.read()
        assert process.wait(TIMEOUT_S) == 0
