"""Compares the translation of programs with the output of the TypeScript compiler, as trees, or
else by the results of both when they run.

``python -m tests.sandbox.typescript.conformance.typescript_conformance CASES``: the compiler's own
cases, from a clone of microsoft/TypeScript, or of microsoft/typescript-go, whose baselines have
them in. ``fetch`` in the place of CASES clones the latter into the cache. The compiler comes from
the npm registry.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from rookery.actors.sandbox.python.build import GuestCache, cache_folder
from rookery.actors.sandbox.runtime.wasm import make_engine
from rookery.actors.sandbox.typescript.guest import JavaScriptGuest
from rookery.actors.sandbox.typescript.translation import SourceRefused, Transform, erase, translate
from tests.sandbox.typescript.typescript_variations import variations

__all__ = ["Compiler", "Unavailable", "Verdict", "judged"]

PACKAGE = "typescript@6.0.3"
PROGRAM = Path(__file__).with_name("typescript_compiler.mjs")
BASELINES = "https://github.com/microsoft/typescript-go"
PLACES = (
    re.compile(r"tests/cases/(conformance|compiler)/.*\.ts"),
    re.compile(r"testdata/baselines/reference/submodule/(conformance|compiler)/.*\.js"),
)
FETCH_S = 120
_PART = re.compile(r"^//// \[(.*?)\](?: ////)?\r?\n", re.MULTILINE)
_FILE = re.compile(r"^// @filename: *(\S+) *\r?\n", re.MULTILINE | re.IGNORECASE)
_SOURCE = re.compile(r"(?<!\.d)\.[mc]?ts$")

GOOD = frozenset(("the same tree", "the same behaviour", "refused alike", "not translated"))
"""Not translated: more than a type, and refused before anything runs."""
WRONG = "wrong syntax, says the compiler"
KNOWN = frozenset(
    (
        "exportSpecifiers.ts:exports.ts",
        "assignmentToInstantiationExpression.ts",
        "declarationEmitInterfaceWithNonEntityNameExpressionHeritage.ts",
        "emit.ts:no.ts",
        "esModuleInteropTslibHelpers.ts:file.ts",
        "esModuleInteropTslibHelpers.ts:file2.ts",
        "esModuleInteropTslibHelpers.ts:file3.ts",
        "esModuleInteropTslibHelpers.ts:file4.ts",
        "interfaceMayNotBeExtendedWitACall.ts",
        "moduleAugmentationGlobal7.ts",
        "moduleAugmentationGlobal7_1.ts",
        "moduleAugmentationGlobal8.ts",
        "moduleAugmentationGlobal8_1.ts",
        "nodeModulesDynamicImport.ts:index.ts",
        "nodeModulesImportHelpersCollisions.ts:index.ts",
    )
)
"""Cases with types only that are refused before they run (``export { type type as a }``,
``a<b> = c``, ``interface A extends b()``), or leave an empty namespace behind, or import ``fs`` or
``path`` of node, which a session has: the compiler makes a ``require`` of that."""


class Unavailable(Exception):
    """There is no compiler; the message has the reason."""


class Verdict(msgspec.Struct):
    kind: str
    erasable: bool
    detail: Any = None

    @property
    def is_good(self) -> bool:
        return self.kind in GOOD and not (self.erasable and self.kind == "not translated")


class _Made(msgspec.Struct):
    """The verdict on a program."""

    refusal: str = ""
    text: str = ""
    script: str = ""


class _Tools:
    """Every name but ``require`` is a tool, because names are not compared."""

    def __contains__(self, name: object) -> bool:
        return name != "require"


def _own_folder() -> Path:
    return cache_folder(os.environ).with_name("typescript-conformance")


def compiler() -> Path:
    """Fetched once, into the user's cache."""
    if not (shutil.which("node") and shutil.which("npm")):
        raise Unavailable("there is no Node.js here")
    folder = _own_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        fetched = folder / "fetched"
        if not fetched.exists() or fetched.read_text() != PACKAGE:
            _fetch_compiler(folder)
            fetched.write_text(PACKAGE)
    return folder / "node_modules" / "typescript"


def _fetch_compiler(folder: Path) -> None:
    flags = ("--no-save", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts")
    command = ["npm", "install", *flags, "--fetch-retries=1", "--prefix", str(folder), PACKAGE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_S, check=False)
    except subprocess.TimeoutExpired:
        raise Unavailable("the npm registry does not answer") from None
    if done.returncode:
        raise Unavailable(f"npm has no compiler for us: {done.stderr[-300:]}")


class Compiler:
    """The compiler in another process, with one request a line."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            ["node", str(PROGRAM), str(compiler())], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def __enter__(self) -> Compiler:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def ask(self, **task: list[Any]) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(task).encode() + b"\n")
        stdin.flush()
        found: dict[str, Any] = json.loads(stdout.readline())
        return found


def judged(
    sources: Mapping[str, str], compiler: Compiler, transform: Transform
) -> dict[str, Verdict]:
    """One verdict for every program that the compiler parses."""
    emitted = compiler.ask(emit=list(sources.values()))["emit"]
    theirs = {name: made for name, made in zip(sources, emitted, strict=True) if made}
    ours = {name: _made(sources[name], transform) for name in theirs}
    again = {name: _made(made["text"], transform) for name, made in theirs.items()}
    kinds = {name: _by_refusal(ours[name], again[name], theirs[name]) for name in theirs}
    both = [name for name, kind in kinds.items() if not kind]
    pairs = [[ours[name].text, theirs[name]["text"]] for name in both]
    compared = dict(zip(both, compiler.ask(compare=pairs)["compare"], strict=True))
    kinds |= {name: "the same tree" for name, parted in compared.items() if parted is None}
    others = [name for name, kind in kinds.items() if not kind and not theirs[name]["erasable"]]
    pairs = [[ours[name].script, again[name].script] for name in others]
    ran = zip(others, compiler.ask(run=pairs)["run"], strict=True)
    kinds |= {name: "the same behaviour" for name, parted in ran if parted is None}
    kinds |= {name: "another program" for name, kind in kinds.items() if not kind}
    bad = [name for name, kind in kinds.items() if kind not in GOOD]
    wrong = compiler.ask(wrong=[sources[name] for name in bad])["wrong"]
    kinds |= {name: WRONG for name, codes in zip(bad, wrong, strict=True) if codes}
    return {
        name: Verdict(kind, theirs[name]["erasable"], compared.get(name) or ours[name].refusal)
        for name, kind in kinds.items()
    }


def _made(source: str, transform: Transform) -> _Made:
    try:
        script = translate(source, _Tools(), transform, _unwatched)
        text = erase(source, _Tools(), transform, _unwatched).text
    except SourceRefused as refused:
        return _Made(f"{refused.error.code}: {refused.error.message}")
    return _Made("", text, script.text)


def _by_refusal(ours: _Made, again: _Made, theirs: dict[str, Any]) -> str:
    """``again`` is what becomes of the compiler's JavaScript."""
    code, other = ours.refusal.partition(":")[0], again.refusal.partition(":")[0]
    if not code and not other:
        return ""
    if code == other or (theirs["requires"] and "modules" in ours.refusal):
        return "refused alike"
    if code and not theirs["erasable"]:
        return "not translated"
    return "refused for its types" if code else "let through"


def _unwatched() -> None:
    pass


# --- the compiler's own cases ---------------------------------------------------------------------


def cases_in(repository: Path) -> dict[str, str]:
    """From a clone, bare or not."""
    git = ["git", "-C", str(repository)]
    listed = subprocess.run([*git, "ls-tree", "-r", "HEAD"], capture_output=True, check=True)
    wanted = []
    for line in listed.stdout.decode().splitlines():
        _, kind, name, path = re.split(r"\s", line, maxsplit=3)
        if kind == "blob" and any(place.fullmatch(path) for place in PLACES):
            wanted.append((name, path))
    command = [*git, "cat-file", "--batch"]
    names = "\n".join(name for name, _ in wanted).encode()
    data = subprocess.run(command, input=names, capture_output=True, check=True).stdout
    cases: dict[str, str] = {}
    at = 0
    for _, path in wanted:
        begin = data.index(b"\n", at) + 1
        end = begin + int(data[at:begin].split()[2])
        at = end + 1
        text = data[begin:end].decode(errors="replace").replace("\r\n", "\n")
        for name, source in _sources(path, text):
            cases.setdefault(name, source)
    return cases


def _sources(path: str, text: str) -> Iterator[tuple[str, str]]:
    """The files a case is made of; a baseline says first which case it is."""
    if path.startswith("tests/"):
        case, parts = path, ["", Path(path).name, *_FILE.split(text)[1:]]
        if len(parts) == 2:
            parts.append(text)
        else:
            del parts[1]
    else:
        case, parts = "", _PART.split(text)
        case = parts[1]
        parts = ["", *parts[3:]]
    for name, source in zip(parts[1::2], parts[2::2], strict=False):
        if _SOURCE.search(name):
            yield f"{case}:{name}", source


def main(where: str) -> int:
    if where == "fetch":
        place = _own_folder() / "typescript-go.git"
        if not place.exists():
            subprocess.run(
                ["git", "clone", "--bare", "--depth", "1", BASELINES, str(place)], check=True
            )
        where = str(place)
    guest = JavaScriptGuest(make_engine(), GuestCache(cache_folder(os.environ)))
    good = True
    with Compiler() as judge:
        groups = (("own", variations()), ("the compiler's", cases_in(Path(where))))
        for name, sources in groups:
            good &= _told(name, sources, judged(sources, judge, guest.transform))
    return 0 if good else 1


def _told(name: str, sources: Mapping[str, str], verdicts: dict[str, Verdict]) -> bool:
    """Whether all differences are known ones."""
    counted = Counter((verdict.erasable, verdict.kind) for verdict in verdicts.values())
    sys.stdout.write(f"{name}: {len(sources)} cases, {len(verdicts)} that can be read\n")
    for (erasable, kind), count in sorted(counted.items()):
        what = "types only" if erasable else "more than types"
        sys.stdout.write(f"  {count:5} {what}: {kind}\n")
    good = True
    for case, verdict in verdicts.items():
        if not verdict.is_good and verdict.kind != WRONG:
            known = case.endswith(tuple(KNOWN))
            good &= known or not verdict.erasable
            sys.stdout.write(f"  {'known ' * known}{verdict.kind}: {case} {verdict.detail}\n")
    return good


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(
            "usage: python -m tests.sandbox.typescript.conformance.typescript_conformance CASES"
        )
    sys.exit(main(sys.argv[1]))
