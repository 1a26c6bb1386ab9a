"""``python -m rookery.ops.journal``: the process that checks facts, started by ``CheckProcess``."""

from __future__ import annotations

from rookery.ops.journal.check_process import check_facts

__all__: list[str] = []

if __name__ == "__main__":
    check_facts()
