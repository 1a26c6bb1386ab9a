"""``python -m tests.sandbox.corpus_runner FOLDER`` runs programs of a corpus in CPython itself.

A corpus is text files of programs, each after a line ``#### its name``; ``---- next run`` separates
the runs of a session. Prints JSON: the result and the stdout of every run.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import io
import json
import linecache
import os
import re
import sys
import tempfile
import types
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

from rookery.actors.sandbox.python.guest.values import to_evident_json
from tests.sandbox.session_fixture import FUNCTIONS

__all__ = ["Outcome", "named", "programs"]


_FILE = "/program.py"


class Outcome(NamedTuple):
    value: Any
    stdout: str


def programs(folder: Path) -> dict[str, list[str]]:
    """The runs of each program, by name."""
    found: dict[str, list[str]] = {}
    for path in sorted(folder.glob("*.txt")):
        for part in path.read_text(encoding="utf-8").split("#### ")[1:]:
            name, _, code = part.partition("\n")
            found[f"{path.stem}: {name}"] = code.split("---- next run\n")
    return found


def named(outcomes: dict[str, list[list[Any]]]) -> dict[str, list[Outcome]]:
    return {name: [Outcome(*run) for run in runs] for name, runs in outcomes.items()}


def _main_module() -> dict[str, Any]:
    """A namespace like the sandbox's, with the tools in it."""
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main

    async def fetch(n: int) -> Any:
        return FUNCTIONS["fetch"](n)

    vars(main)["__file__"] = _FILE
    vars(main).update(add=FUNCTIONS["add"], write=FUNCTIONS["write"], fetch=fetch)
    return vars(main)


def _run(code: str, names: dict[str, Any]) -> Outcome:
    names.pop("result", None)
    linecache.cache[_FILE] = len(code), None, code.splitlines(keepends=True), _FILE
    tree = ast.parse(code)
    last = ast.Expression(tree.body.pop().value) if isinstance(tree.body[-1], ast.Expr) else None
    value: Any = None
    printed = io.StringIO()
    with redirect_stdout(printed):
        try:
            for part, mode in ((tree, "exec"), (last, "eval")):
                if part is not None:
                    value = _evaluated(part, mode, names)
        except SystemExit as end:
            if end.code:
                raise
            value = None
    return Outcome(to_evident_json(names.get("result", value)).value, printed.getvalue())


def _evaluated(part: Any, mode: str, names: dict[str, Any]) -> Any:
    compiled = compile(part, _FILE, mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    value = eval(compiled, names)
    if compiled.co_flags & inspect.CO_COROUTINE:
        return asyncio.run(value)
    return value


def main(folder: Path) -> None:
    outcomes: dict[str, Any] = {}
    for name, runs in programs(folder).items():
        with tempfile.TemporaryDirectory() as own:
            outcomes[name] = _run_in(own, runs)
            os.chdir("/")
            tempfile.tempdir = None
    sys.stdout.write(json.dumps(outcomes))


def _run_in(own: str, runs: list[str]) -> Any:
    """Run a program whose ``/work`` and ``/tmp`` are folders of its own; the outcomes name them as
    the program does."""
    folders = {place: own + place for place in ("/work", "/tmp")}
    for place in folders.values():
        os.mkdir(place)
    tempfile.tempdir = folders["/tmp"]
    os.chdir(folders["/work"])
    sys.path[0:0] = [folders["/work"]]
    names = _main_module()
    outcomes = [_run(_moved(code, folders), names) for code in runs]
    sys.path.remove(folders["/work"])
    text = json.dumps(outcomes)
    for place, folder in folders.items():
        text = text.replace(folder, place)
    return json.loads(text)


def _moved(code: str, folders: dict[str, str]) -> str:
    return re.sub(r"(?<=[\"'])/(work|tmp)\b", lambda found: folders[found[0]], code)


if __name__ == "__main__":
    main(Path(sys.argv.pop(1)).resolve())
