"""Packages for programs: wheels of pure Python; those with compiled code are found and refused."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from email.parser import HeaderParser
from hashlib import sha3_256
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

import msgspec

from rookery.actors.sandbox.python.file_cache import FileCache
from rookery.schemas.errors import Failed, Refused

__all__ = [
    "COMPILED",
    "Package",
    "Wheels",
    "build_variables",
    "normal_requirements",
    "read_package",
    "unpack",
    "unusable_modules",
]

# --- compiled code --------------------------------------------------------------------------------

# Finds packages that cannot be imported without compiled code, by their sources.
#
# A module is unusable if its compiled code is missing, or if it imports an unusable module when it
# is loaded, outside a ``try`` that catches the failure. A package with an unusable top module is
# refused before anything is built.


COMPILED = (".so", ".pyd", ".dll", ".dylib")
_IMPORT_ERRORS = frozenset(("BaseException", "Exception", "ImportError", "ModuleNotFoundError"))


class _Module(NamedTuple):
    name: str
    package: str
    source: str


def unusable_modules(sources: Mapping[str, str]) -> dict[str, str]:
    """By the name of each unusable module: the compiled module that it needs. ``sources`` are
    the files of packages by their paths; those of compiled code may be empty."""
    modules = [_module(path, text) for path, text in sources.items() if path.endswith(".py")]
    present = {module.name for module in modules}
    names = (_compiled_name(path) for path in sources if path.endswith(COMPILED))
    needs = {name: name for name in names if name not in present}
    imported: dict[str, set[str]] = {}
    while found := dict(_newly_unusable(modules, needs, imported)):
        needs |= found
    return needs


def _newly_unusable(
    modules: Iterable[_Module], needs: Mapping[str, str], imported: dict[str, set[str]]
) -> Iterator[tuple[str, str]]:
    words = {name.rpartition(".")[2] for name in needs}
    for module in modules:
        if module.name in needs or not any(word in module.source for word in words):
            continue
        if module.name not in imported:
            imported[module.name] = set(_imports(module))
        for name in imported[module.name]:
            if name in needs:
                yield module.name, needs[name]
                break


def _module(path: str, source: str) -> _Module:
    parts = PurePosixPath(path).with_suffix("").parts
    if parts[-1] == "__init__":
        name = ".".join(parts[:-1])
        return _Module(name, name, source)
    return _Module(".".join(parts), ".".join(parts[:-1]), source)


def _compiled_name(path: str) -> str:
    place = PurePosixPath(path)
    return ".".join((*place.parts[:-1], place.name.partition(".")[0]))


def _imports(module: _Module) -> Iterator[str]:
    """The modules that are imported when the module is loaded, with their packages; none for a
    source that this Python cannot parse, such as one for a newer Python."""
    try:
        body = ast.parse(module.source).body
    except (SyntaxError, ValueError):
        return
    for node in _statements(body):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            above = module.package.split(".")[: _level_end(module.package, node.level)]
            source = ".".join([*(above if node.level else ()), *filter(None, [node.module])])
            names = [f"{source}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[:end]) for end in range(1, len(parts) + 1))


def _level_end(package: str, level: int) -> int:
    return len(package.split(".")) - max(level - 1, 0)


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """The imports that are executed when a module is loaded, and whose failure is not caught."""
    for node in body:
        match node:
            case ast.Import() | ast.ImportFrom():
                yield node
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                continue
            case ast.If(test=test) if "TYPE_CHECKING" in ast.unparse(test):
                yield from _statements(node.orelse)
            case ast.Try() if any(map(_catches, node.handlers)):
                continue
            case _:
                for part in ("body", "orelse", "finalbody"):
                    yield from _statements(getattr(node, part, ()))


def _catches(handler: ast.ExceptHandler) -> bool:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(kind is None or getattr(kind, "id", "") in _IMPORT_ERRORS for kind in kinds)


# --- packages -------------------------------------------------------------------------------------

# Packages for programs: wheels of pure Python, fetched by pip when a guest is built.
#
# A list of requirements is resolved once: the wheels are stored beside the guest of that list, with
# their digests, and are part of its build. pip fetches wheels for the guest's own Python. Of a
# wheel with compiled code the guest gets the Python part; a package that cannot be imported without
# the rest is refused.


PYTHON: Final = "3.14"
"""The version of the guest's interpreter."""
_PLATFORMS: Final = ("manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux_2_28_x86_64")
"""Wheels with compiled code are found on these platforms; only their Python part is used."""
_REQUIREMENT = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9._,-]+\])?((==|>=|<=|~=|!=|<|>)[A-Za-z0-9.*+!]+,?)*"
)
_VARIABLE: Final = re.compile(
    "PATH|HOME|USER|LOGNAME|TMPDIR|TZ|LANG|LC_[A-Z]+|LD_LIBRARY_PATH|XDG_[A-Z_]+"
)
_OF_PIP: Final = re.compile(
    "PIP_[A-Z_]+|NETRC|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|(https?|all|no)_proxy", re.IGNORECASE
)
_LOCK: Final = "wheels.json"
_LEFT_OUT: Final = frozenset(("tzdata",))
"""The guest has its own."""
_PART_BYTES_MAX: Final = 8 << 20
_HINT: Final = "`rookery guest build --packages NAME,...` tries a list"


def build_variables(environ: Mapping[str, str], *, pip: bool = False) -> dict[str, str]:
    """The node's variables that a process of a build gets; all others may hold secrets."""
    return {
        name: text
        for name, text in environ.items()
        if _VARIABLE.fullmatch(name) or (pip and _OF_PIP.fullmatch(name))
    }


class Package(msgspec.Struct, frozen=True, kw_only=True):
    """A package of a build."""

    name: str
    version: str
    imports: list[str]
    """The names that a program imports."""


def normal_requirements(requirements: Iterable[str]) -> tuple[str, ...]:
    """The list in one form, because it names a build; raises ``CONFIG_INVALID``."""
    found = {re.sub(r"\s+", "", one).lower() for one in requirements}
    for one in found:
        if not _REQUIREMENT.fullmatch(one):
            raise Refused(
                "CONFIG_INVALID",
                f"sandbox.packages: {one[:100]!r} is no name of a package with versions",
                hint="as in `sympy` or `jinja2>=3,<4`; no files, addresses or options",
            )
    return tuple(sorted(found))


class Wheels:
    """The wheels of one list of requirements, in the folder of its build."""

    def __init__(self, folder: Path, files: FileCache, requirements: Sequence[str]) -> None:
        self._folder, self._files, self._requirements = folder, files, requirements

    def paths(self) -> list[Path]:
        """The resolved wheels, fetched if they are not stored or damaged."""
        lock = self._folder / _LOCK
        if self._files.lock(lock):
            digests = msgspec.json.decode(lock.read_bytes(), type=dict[str, str])
            paths = {name: self._folder / name for name in digests}
            if all(
                self._files.lock(path) and sha3_256(path.read_bytes()).hexdigest() == digests[name]
                for name, path in paths.items()
            ):
                return list(paths.values())
        return self._fetched(lock)

    def _fetched(self, lock: Path) -> list[Path]:
        with tempfile.TemporaryDirectory(prefix="rookery-wheels-") as scratch:
            _download(self._requirements, Path(scratch))
            found = sorted(Path(scratch).glob("*.whl"))
            digests = {}
            for path in found:
                data = path.read_bytes()
                self._files.write(self._folder / path.name, data)
                digests[path.name] = sha3_256(data).hexdigest()
        self._files.write(lock, msgspec.json.encode(digests))
        return [self._folder / name for name in digests]


def _download(requirements: Sequence[str], folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check"]
    command += ["--only-binary=:all:", "--python-version", PYTHON]
    command += [part for name in _PLATFORMS for part in ("--platform", name)]
    done = subprocess.run(
        [*command, "-d", str(folder), *requirements],
        env=build_variables(os.environ, pip=True),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")]
        said = "; ".join(lines) or done.stderr.strip()[-500:]
        raise Failed("GUEST_BUILD_FAILED", f"pip found no wheels: {said}", hint=_HINT)


def unpack(wheels: Iterable[Path], folder: Path) -> list[Package]:
    """Unpack the Python code and the data of these wheels, without compiled code; raises
    ``GUEST_BUILD_FAILED`` for a package that cannot be imported without it."""
    packages: list[Package] = []
    sources: dict[str, str] = {}
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            package = read_package(archive)
            if package.name in _LEFT_OUT:
                continue
            packages.append(package)
            for name in archive.namelist():
                _extract(archive, name, folder)
                if name.endswith(COMPILED):
                    sources[name] = ""
    if sources:
        for path in folder.rglob("*.py"):
            name = path.relative_to(folder).as_posix()
            sources[name] = path.read_text(encoding="utf-8", errors="replace")
        _require_usable(packages, unusable_modules(sources))
    return packages


def _require_usable(packages: Iterable[Package], needs: Mapping[str, str]) -> None:
    for package in packages:
        for name in package.imports:
            if name in needs:
                raise Failed(
                    "GUEST_BUILD_FAILED",
                    f"{package.name} needs compiled code ({needs[name]}), which the guest cannot"
                    " run",
                    hint="leave it out of sandbox.packages, and all packages that need it",
                )


def read_package(archive: zipfile.ZipFile) -> Package:
    """Name, version and top modules of a wheel."""
    names = [name for name in archive.namelist() if not name.endswith("/")]
    metadata = next(name for name in names if name.endswith(".dist-info/METADATA"))
    headers = HeaderParser().parsestr(archive.read(metadata).decode())
    tops = {PurePosixPath(name).parts[0] for name in names if ".dist-info/" not in name}
    imports = [top for top in tops if top.endswith(".py") or f"{top}/__init__.py" in names]
    return Package(
        name=headers["Name"],
        version=headers["Version"],
        imports=sorted(top.removesuffix(".py") for top in imports if not top.startswith("_")),
    )


def _extract(archive: zipfile.ZipFile, name: str, folder: Path) -> None:
    parts = PurePosixPath(name).parts
    if name.startswith("/") or ".." in parts or name.endswith(("/", *COMPILED)):
        return
    if archive.getinfo(name).file_size > _PART_BYTES_MAX or _is_left_out(parts):
        return
    target = folder.joinpath(*parts)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(archive.read(name))


def _is_left_out(parts: tuple[str, ...]) -> bool:
    """Tests, scripts, and the lists of files, which no program needs."""
    data = parts[0].endswith(".data")
    return data or "tests" in parts or parts[-1] in ("RECORD", "WHEEL")
