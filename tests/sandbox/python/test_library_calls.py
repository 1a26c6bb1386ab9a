"""Ordinary library calls without a system: they work or raise, and the interpreter survives. The
host implements all of WASI itself.
"""

from __future__ import annotations

import pytest

from tests.sandbox.session_fixture import Stage

REACH = "import builtins\ngetattr(builtins, 'exec')(source, {'__name__': 'reached'})"
"""The program in a form that the static checks do not see."""

RAISES = {
    "import socket; socket.gethostbyname('x')": "PermissionError",
    "import socket; socket.getaddrinfo('x', 80)": "PermissionError",
    "import socket; socket.create_connection(('127.0.0.1', 80))": "PermissionError",
    "import socket; socket.socketpair()": "Error",
    "import os; os.mkdir('/x')": "Error",
    "import os; os.open('/etc/passwd', 0)": "Error",
    "import os; os.system('ls')": "Error",
    "import os; os.fork()": "Error",
    "import os; os.kill(1, 9)": "Error",
    "import os; os.getlogin()": "Error",
    "open('/etc/passwd')": "Error",
    "import subprocess; subprocess.run(['ls'])": "Error",
    "import ctypes": "Error",
    "import multiprocessing": "Error",
    "import sys; sys.exit(3)": "SystemExit",
    "import threading; threading.Thread(target=print).start()": "Error",
    "import concurrent.futures as c; c.ThreadPoolExecutor().submit(print)": "Error",
    "import queue; queue.Queue().get(timeout=0.1)": "Empty",
    "input()": "EOFError",
    "exec('1/0')": "ZeroDivisionError",
    "raise KeyboardInterrupt": "KeyboardInterrupt",
    "raise GeneratorExit": "GeneratorExit",
}
WORKS = [
    "import os; os.stat('/'); os.listdir('/'); os.stat('/dev/null'); os.statvfs('/work')",
    "import pathlib; list(pathlib.Path('/').iterdir()); pathlib.Path('x').resolve()",
    "import tempfile, shutil; shutil.rmtree(tempfile.mkdtemp()); shutil.disk_usage('/')",
    "import zoneinfo; zoneinfo.ZoneInfo('Europe/Paris')",
    "import asyncio; asyncio.new_event_loop().close(); asyncio.run(asyncio.sleep(1))",
    "import platform; platform.platform(); platform.python_version()",
    "import sys; sys.exit(0)",
    "exit()",
    "import uuid; uuid.getnode(); uuid.uuid1()",
    "import time; time.sleep(1); time.process_time(); time.thread_time(); time.ctime()",
    "import time; time.clock_gettime(time.CLOCK_MONOTONIC); time.get_clock_info('monotonic')",
    "import time; time.clock_gettime(time.CLOCK_REALTIME); time.localtime()",
    "import datetime; datetime.date.today(); datetime.datetime.now(datetime.timezone.utc)",
    "import os; os.getcwd(); os.getpid(); os.cpu_count(); os.environ.get('A')",
    "import os; os.path.exists('/x')",
    "import os; os.isatty(0), os.isatty(1), os.isatty(2)",
    "import os; os.write(1, b'x'); os.write(2, b'y')",
    "import os; os.read(0, 1)",
    "import sys; sys.__stdout__.write('x'); sys.__stdout__.flush(); sys.__stderr__.write('x')",
    "import sys; sys.stdin.readline()",
    "import sys; sys.settrace(lambda *a: None)",
    "import select; select.select([], [], [], 0.1); select.select([], [], [], 0)",
    "import threading; threading.Event().wait(0.1); threading.Lock().acquire(timeout=0.1)",
    "import threading; l = threading.Lock(); l.acquire(); l.acquire(timeout=0.1)",
    "import locale; locale.getlocale()",
    "import traceback; traceback.print_stack()",
    "import random; random.seed(); import secrets; secrets.token_hex(4); secrets.randbelow(9)",
    "import logging; logging.warning('x')",
    "print('x', flush=True)",
]


@pytest.mark.parametrize("source", RAISES)
def test_what_needs_a_world_raises(stage: Stage, source: str):
    stage.run("alive = 1")
    outcome = stage.run(REACH, inputs={"source": source})
    assert outcome.error is not None
    assert RAISES[source] in outcome.error.message
    assert stage.value("alive") == 1, "the session was put back: the interpreter had died"
    assert stage.value("source") == source


@pytest.mark.parametrize("source", WORKS)
def test_what_needs_none_works(stage: Stage, source: str):
    outcome = stage.run(REACH, inputs={"source": source})
    assert outcome.status == "ok", outcome.error


def test_what_is_written_to_the_file_descriptors_is_output_too(stage: Stage):
    source = "import os; os.write(1, b'out'); os.write(2, 'érr'.encode()); print('more')"
    outcome = stage.run(REACH, inputs={"source": source})
    assert (outcome.stdout, outcome.stderr) == ("outmore\n", "érr")
