"""Time and chance are arguments: they enter at the places named here and nowhere else.

A stopwatch is not a clock: what it reads goes into metrics, never into a fact.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.laws.source import PRODUCT, Module, dotted, expect_none, imports, modules, nodes, under

STOPWATCH = "time.perf_counter"
ALLOWED = {
    "bus/clock.py": ("time", "os.urandom"),
    "bus/nats/batch_client.py": ("time.monotonic",),  # A field of nats-py's server pool wants it.
    "actors/kernel/actor.py": (STOPWATCH,),
    "actors/kernel/command_processor.py": (STOPWATCH,),
    "actors/kernel/committer.py": (STOPWATCH,),
    "actors/kernel/command_router.py": (STOPWATCH,),
    "actors/kernel/effect_runner.py": (STOPWATCH,),
    "actors/tools/attempts/executor.py": (STOPWATCH,),
    "actors/tools/functions/local_host.py": (STOPWATCH,),
    "actors/execution/driver.py": (STOPWATCH,),
    "actors/sandbox/sessions/meters.py": ("time.perf_counter_ns", "time.thread_time_ns"),
    "actors/sandbox/python/guest/clock.py": ("time",),  # Inside the guest, where time is the host's
    "actors/sandbox/python/guest/app.py": ("random.seed",),  # to tell, and chance too.
    "actors/sandbox/python/guest/loop.py": ("time.sleep",),
    "ops/cli/commands/machine.py": (STOPWATCH,),
    "ops/bench/": (STOPWATCH, "time.process_time", "time.thread_time"),
}
MODULES = ("time", "random", "secrets")
CALLS = (
    "uuid.uuid1",
    "uuid.uuid4",
    "os.urandom",
    "datetime.now",
    "datetime.utcnow",
    "datetime.today",
    "date.today",
)


def readings(module: Module) -> Iterator[tuple[int, str]]:
    """Line and name of everything that reads a clock or rolls dice."""
    for line, name in imports(module):
        if name.partition(".")[0] in MODULES and name not in MODULES:
            yield line, name
        if name in CALLS:
            yield line, name
    for node in nodes(module):
        if isinstance(node, ast.Attribute):
            name = dotted(node)
            if name.partition(".")[0] in MODULES or name.endswith(CALLS):
                yield node.lineno, name


def allowed(module: Module) -> tuple[str, ...]:
    return sum((names for path, names in ALLOWED.items() if module.path.startswith(path)), ())


def test_time_and_chance_enter_only_where_listed():
    found = [
        f"{module.path}:{line} reads {name}"
        for module in modules(*PRODUCT)
        for line, name in readings(module)
        if not under(name, *allowed(module))
    ]
    expect_none(found)


def test_no_listed_place_has_become_needless():
    reading = [module.path for module in modules(*PRODUCT) if any(readings(module))]
    needless = [path for path in ALLOWED if not any(r.startswith(path) for r in reading)]
    expect_none(needless)
