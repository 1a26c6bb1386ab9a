"""Where the guest begins: reads the library and the zones, closes the disk, and loads the rest.

What is imported before the exchange could hold a function that asks the host for files. So the
order matters, and nearly everything is imported after it.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from guest.system import open_files, os_calls
from guest.system.library import FOLDER, LIBRARY
from guest.system.zones import ZONES

__all__ = ["WitWorld"]


def exchange(before: dict[int, Any]) -> None:
    """Put new functions where modules loaded earlier hold the old ones, which are known by id."""
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", {})
        for name, value in list(names.items()):
            if id(value) in before and not name.startswith("_real_"):
                names[name] = before[id(value)]


assert ZONES.names()
LIBRARY.add(FOLDER)
LIBRARY.add(os.path.dirname(__file__), __package__ or "guest")
exchange(open_files.install() | os_calls.install())
LIBRARY.install()

from guest.app import WitWorld, prepare  # noqa: E402 - after the disk is closed.

prepare()
LIBRARY.seal()
