"""``python -m rookery.ops.cli``: the command line without a script on the PATH."""

from __future__ import annotations

import sys

from rookery.ops.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(main())
