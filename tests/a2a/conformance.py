"""Runs the official kit against a gateway: ``python -m tests.a2a.conformance KIT``.

KIT is a checkout of github.com/a2aproject/a2a-tck, branch ``1.0-dev``, outside of this repository;
``KIT_PYTHON`` names an interpreter that has what the kit needs. The exit code is 0 if only listed
tests fail; each is listed in ``ops/docs/a2a.md`` with the sentence of the specification.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.a2a.a2a_realms import TOKENS, A2aRealm

HERE: Final = Path(__file__).parent
LISTED: Final = {"TestAgentCardLastModified::test_last_modified_present": "CARD-CACHE-003, a MAY"}
"""Tests that fail, and the requirement that is not met."""


def run_kit(kit: Path, arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        realm = A2aRealm(Path(folder))
        program = (HERE / "kit_agent.program").read_text()
        with realm.agent(program), realm.gateway() as gateway:
            command = [os.environ.get("KIT_PYTHON", sys.executable), "-m", "pytest"]
            options = ["--sut-host", gateway.url, "--transport", "jsonrpc,http_json", "-rfs"]
            plugin = ["-p", "kit_plugin", "--webhook-host", "127.0.0.1", "tests/compatibility"]
            paths = os.pathsep.join((str(HERE), str(kit)))
            ended = subprocess.run(
                [*command, *options, *plugin, *arguments],
                cwd=kit,
                env=os.environ | {"PYTHONPATH": paths, "KIT_TOKEN": TOKENS["bob"]},
                stdout=subprocess.PIPE,
                text=True,
                check=False,
            )
    print(ended.stdout)
    failed = re.findall(r"^FAILED \S+?::(\S+)", ended.stdout, re.MULTILINE)
    others = [name for name in failed if name not in LISTED]
    is_run = re.search(r"\d+ passed", ended.stdout) is not None
    print(f"failed and not listed: {others or 'none'}")
    return 0 if is_run and not others else 1


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python -m tests.a2a.conformance KIT [PYTEST-ARGUMENTS]")
    sys.exit(run_kit(Path(sys.argv[1]), sys.argv[2:]))
