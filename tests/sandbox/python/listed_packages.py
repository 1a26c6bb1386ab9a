"""``python -m tests.sandbox.python.listed_packages``: the packages that models use most.

They are fetched from the index of pip and built into one guest. A program uses each of them, also
after a snapshot. What needs compiled code is refused by the build, with that reason.
"""

from __future__ import annotations

import os
import sys
from typing import Final, NamedTuple

from rookery.actors.sandbox import Sandbox
from rookery.actors.sandbox.python import GuestCache, cache_folder
from rookery.actors.sandbox.python.python_guest import PythonGuest
from rookery.actors.sandbox.runtime import make_engine
from rookery.schemas.errors import Failed
from tests.sandbox.session_fixture import KEY, TOOLS, Stage

__all__ = ["main"]


class PackageProgram(NamedTuple):
    """A program that uses a package, in two runs."""

    package: str
    begin: str
    use: str
    value: object


PROGRAMS: Final = (
    PackageProgram(
        "python-dateutil",
        "from dateutil import parser, relativedelta",
        "str(parser.parse('31 Jan 2026 10:00') + relativedelta.relativedelta(months=1))",
        "2026-02-28 10:00:00",
    ),
    PackageProgram(
        "pyyaml",
        "import yaml",
        "[yaml.safe_load('a: [1, 2]\\nb: yes'), yaml.safe_dump({'c': [3]})]",
        [{"a": [1, 2], "b": True}, "c:\n- 3\n"],
    ),
    PackageProgram(
        "jinja2",
        "from jinja2 import Template\np = Template('{% for n in all %}{{n|title}};{% endfor %}')",
        "p.render(all=['ann', 'bob'])",
        "Ann;Bob;",
    ),
    PackageProgram(
        "markdown",
        "import markdown",
        "markdown.markdown('# T\\n\\n|a|b|\\n|-|-|\\n|1|2|', extensions=['tables'])[:24]",
        "<h1>T</h1>\n<table>\n<thea",
    ),
    PackageProgram(
        "beautifulsoup4",
        "from bs4 import BeautifulSoup as Page\np = Page('<p>a<b id=x>c</b></p>', 'html.parser')",
        "[p.find(id='x').text, p.p.text]",
        ["c", "ac"],
    ),
    PackageProgram(
        "networkx",
        "import networkx as nx\ngraph = nx.path_graph(5)\ngraph.add_edge(0, 3)",
        "[nx.shortest_path(graph, 0, 4), sorted(nx.degree_centrality(graph))]",
        [[0, 3, 4], [0, 1, 2, 3, 4]],
    ),
    PackageProgram(
        "sympy",
        "import sympy\nx = sympy.Symbol('x')",
        "[str(sympy.integrate(x**2 * sympy.sin(x), x)), str(sympy.solve(x**2 - 2, x))]",
        ["-x**2*cos(x) + 2*x*sin(x) + 2*cos(x)", "[-sqrt(2), sqrt(2)]"],
    ),
    PackageProgram(
        "tabulate",
        "from tabulate import tabulate",
        "tabulate([['tea', 3]], headers=['item', 'price'], tablefmt='github')",
        "| item   |   price |\n|--------|---------|\n| tea    |       3 |",
    ),
)
COMPILED: Final = {"pydantic": "pydantic_core._pydantic_core"}
"""Packages that need compiled code, and the module that has it."""
_LIMITS = {"cpu_ms": 60_000, "wall_ms": 120_000, "memory_mb": 256}


def main() -> int:
    """Returns 0 if every package does as listed."""
    problems = [*_refused(), *_used()]
    for problem in problems:
        sys.stdout.write(f"  {problem}\n")
    sys.stdout.write(f"{len(PROGRAMS) + len(COMPILED)} packages, {len(problems)} problems\n")
    return 1 if problems else 0


def _used() -> list[str]:
    problems = []
    engine, named = make_engine(), [one.package for one in PROGRAMS]
    guest = PythonGuest(engine, GuestCache(cache_folder(os.environ), packages=named))
    with Sandbox(engine, [guest], KEY) as sandbox:
        for one in PROGRAMS:
            stage = Stage(sandbox, one.package)
            outcomes = [stage.run(one.begin, limits=_LIMITS), stage.run(one.use, limits=_LIMITS)]
            taken = sandbox.snapshot(one.package).data
            stage.end()
            sandbox.restore(taken, tools=TOOLS)
            outcomes.append(stage.run(one.use, limits=_LIMITS))
            stage.end()
            found = [outcome.error or outcome.result for outcome in outcomes[1:]]
            if found != [one.value, one.value]:
                problems.append(f"{one.package}: {found}")
    return problems


def _refused() -> list[str]:
    problems = []
    for package, module in COMPILED.items():
        try:
            GuestCache(cache_folder(os.environ), packages=[package]).component(stub_wasi=True)
        except Failed as failed:
            if f"needs compiled code ({module})" in failed.message:
                continue
            problems.append(f"{package}: {failed.message}")
        else:
            problems.append(f"{package}: it was built")
    return problems


if __name__ == "__main__":
    sys.exit(main())
