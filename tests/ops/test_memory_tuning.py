"""What threads of a node have freed is returned to the system."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys

from rookery.ops.memory_tuning import collecting_rarely

_PROGRAM = """
import ctypes, os, threading
from rookery.ops.bench.harness.process_usage import resident_bytes
from rookery.ops.memory_tuning import HeapTrimmer, tune_memory_for_start

tune_memory_for_start()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]

def fill():
    pieces = [libc.malloc(100_000) for _ in range(250)]
    for piece in pieces:
        ctypes.memset(piece, 1, 100_000)
    pinned.append(libc.malloc(100_000))
    for piece in pieces:
        libc.free(piece)

pinned = []
threads = [threading.Thread(target=fill) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
big = [libc.malloc(100_000) for _ in range(1_000)]
for piece in big: ctypes.memset(piece, 1, 100_000)
pinned.append(libc.malloc(100_000))
for piece in big: libc.free(piece)
before = resident_bytes(os.getpid())
trimmer = HeapTrimmer(libc)
assert trimmer.trim()
assert resident_bytes(os.getpid()) < before - 80_000_000, (before, resident_bytes(os.getpid()))
assert not trimmer.trim()  # Nothing has changed.
"""


def test_free_memory_of_the_heap_is_returned_once():
    if not hasattr(ctypes.CDLL(None), "mallinfo2"):
        return  # Another C library: there is no trimmer.
    command = [sys.executable, "-c", _PROGRAM]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_is_collected_rarely_is_collected_as_before_afterwards():
    before = gc.get_threshold()
    with collecting_rarely():
        assert gc.get_threshold() > before
    assert gc.get_threshold() == before
