"""``python -m tests.sandbox.typescript.node_recorder`` runs the everyday programs in node and
stores the results of all runs, as JSON, beside them. It needs node, and TypeScript's compiler from
npm.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.sandbox.corpus_runner import programs
from tests.sandbox.typescript.conformance.typescript_conformance import compiler

__all__ = ["PROGRAMS", "RECORDED"]

PROGRAMS = Path(__file__).with_name("everyday_programs")
RECORDED = PROGRAMS / "printed_by_node.json"
_RUNNER = Path(__file__).with_name("run_in_node.mjs")


def _run(library: str, runs: list[str]) -> Any:
    environment = {**os.environ, "TZ": "UTC", "LC_ALL": "en_US.UTF-8", "NO_COLOR": "1"}
    done = subprocess.run(
        ["node", _RUNNER],
        input=json.dumps([library, runs]).encode(),
        env=environment,
        stdout=subprocess.PIPE,
        check=True,
        timeout=60,
    )
    return json.loads(done.stdout)


def main() -> None:
    library = str(compiler())
    recorded = {name: _run(library, runs) for name, runs in programs(PROGRAMS).items()}
    text = json.dumps(recorded, indent=0, ensure_ascii=False)
    RECORDED.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
