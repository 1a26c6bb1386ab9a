"""A program that runs a command and ends it when the starting process is gone, even after a crash.

``python parent_guard.py <fd> <folder> <command...>``: only the starter holds the other end of
stdin, so the kernel closes it even after a ``kill -9``. The command inherits the open file ``fd``
(a lock, which thereby lives exactly as long as the command). The only output is the command's pid.
The command's announcements, ``<folder>/*_<pid>.ports``, are deleted before it is ended, so that
clients do not connect to a stopping server.

Linux's PDEATHSIG does not suffice: it follows the starting thread, and macOS has none.
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
    """The exit code of ``command``, which inherits ``lock``."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, pass_fds=(lock,))
    threading.Thread(target=_watch_parent, args=(child, Path(folder)), daemon=True).start()
    os.close(lock)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # The guard ends with the command, never before it.
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
