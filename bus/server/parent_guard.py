"""A program of its own: runs a command that ends when whoever started us is gone, however it went.

``python parent_guard.py <fd> <folder> <command...>``: the other end of our stdin is the leash; only
the starter holds it, so the kernel lets go of it even after a ``kill -9``. The command inherits the
open file ``fd`` (a lock, which so lives exactly as long as the command), and its pid is our only
output. What it announces of itself, ``<folder>/*_<pid>.ports``, goes before it is ended: who looks
for a server is not sent to one that is about to hang up.

Linux's PDEATHSIG would not do: it follows the starting thread, and macOS has none.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

__all__ = ["run"]

_GRACE_S = 10.0


def run(lock: int, folder: str, command: list[str]) -> int:
    """The exit code of ``command``, which has inherited ``lock``."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, pass_fds=(lock,))
    threading.Thread(target=_watch_parent, args=(child, Path(folder)), daemon=True).start()
    os.close(lock)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # We end with the command, never before it.
    with suppress(BrokenPipeError):
        os.write(1, b"%d\n" % child.pid)
    return child.wait()


def _watch_parent(child: subprocess.Popen[bytes], folder: Path) -> None:
    while os.read(0, 1024):
        pass
    for announced in folder.glob(f"*_{child.pid}.ports"):
        announced.unlink(missing_ok=True)
    child.terminate()
    threading.Event().wait(_GRACE_S)
    child.kill()


if __name__ == "__main__":
    sys.exit(run(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
