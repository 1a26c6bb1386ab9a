"""``python -m tests.sandbox.typescript.printed_by_node`` runs these programs in node and stores
their output beside them.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory


def main() -> None:
    for program in Path(__file__).parent.glob("*.js"):
        environment = {**os.environ, "TZ": "UTC", "LC_ALL": "en_US.UTF-8", "NO_COLOR": "1"}
        command = ["node", "--input-type=module", "-e", program.read_text()]
        with TemporaryDirectory() as folder:
            printed = subprocess.run(
                command,
                cwd=folder,
                env=environment,
                stdout=subprocess.PIPE,
                check=True,
                timeout=60,
            ).stdout
        program.with_suffix(".txt").write_bytes(printed)


if __name__ == "__main__":
    main()
