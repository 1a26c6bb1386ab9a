"""``python -m rookery.ops.processes <fd>``: one process of a node, started by its supervisor."""

from __future__ import annotations

import sys

from rookery.ops.processes.supervised_node import main

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(main())
