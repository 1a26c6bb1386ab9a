"""Laws about the cut of the house: folders, files, functions, concerns and faces."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Final

from tests.laws.findings import Finding
from tests.laws.outline import outline
from tests.laws.source import Module, dotted, imports

__all__ = [
    "BODY_LINES_MAX",
    "FACE_NAMES_MAX",
    "FILES_MAX",
    "LARGER_FACES",
    "LINES_FREE",
    "LINES_MAX",
    "LINES_USUAL",
    "concern_shapes",
    "crowded_folders",
    "imports_past_a_face",
    "large_faces",
    "long_files",
    "long_functions",
]

# --- folders --------------------------------------------------------------------------------------

FILES_MAX: Final = 16
"""Python files a folder holds at most, its face (``__init__.py``) not counted."""

LARGER_FOLDERS: Final[dict[str, int]] = {
    "schemas": 22,  # A page of the dictionary each; families of words have folders of their own.
    "actors/kernel": 22,  # One machine with many parts, each a word of the field.
    "ops": 24,  # Beside the wiring: what runs a node, a file each.
    "ops/cli/commands": 30,  # A file a command group.
}
"""What the plan of the house gives more room than ``FILES_MAX``, and how much."""


def crowded_folders(modules: Iterable[Module]) -> Iterator[Finding]:
    """What belongs together and is more than a glance takes in gets a folder of its own."""
    sizes = Counter(module.package for module in modules if not module.is_face)
    for folder, files in sorted(sizes.items()):
        most = LARGER_FOLDERS.get(folder, FILES_MAX)
        if files > most:
            do = f"{files} files, {most} are the limit: divide it into packages"
            yield Finding(folder, folder, do, files - most)


# --- files and functions --------------------------------------------------------------------------

LINES_USUAL: Final = (80, 400)
LINES_FREE: Final = 500
LINES_MAX: Final = 600
BODY_LINES_MAX: Final = 40


def long_files(modules: Iterable[Module], reasons: dict[str, str]) -> list[str]:
    """A file is cut at a seam or not at all: up to ``LINES_MAX`` lines, if there is a reason."""
    lines = {module.path: len(module.text.splitlines()) for module in modules}
    found = [
        f"{path} has {count} lines: cut it at a seam"
        + (
            f", or give the reason why it has none in `reasons_for_long_files` ({LINES_MAX} lines "
            "are the limit with one)"
            if count <= LINES_MAX
            else f"; no reason is good for more than {LINES_MAX}"
        )
        for path, count in lines.items()
        if count > LINES_MAX or (count > LINES_FREE and not reasons.get(path, "").strip())
    ]
    return found + [
        f"{path} needs no reason any more: take it out of `reasons_for_long_files`"
        for path in reasons
        if lines.get(path, 0) <= LINES_FREE
    ]


def long_functions(modules: Iterable[Module]) -> Iterator[Finding]:
    """What does not fit on a screen is several things."""
    for module in modules:
        for function in outline(module).functions:
            length = function.body_lines
            if length > BODY_LINES_MAX:
                where = f"{module.path}:{function.line} {function.qualname}"
                do = f"a body of {length} lines, {BODY_LINES_MAX} are the limit: cut it at a step"
                yield Finding(f"{module.path}:{function.qualname}", where, do, length)


# --- concerns -------------------------------------------------------------------------------------

CONCERNS: Final[dict[str, tuple[str, ...]]] = {
    "actors/admission": ("decider", "state", "evolve", "effects", "executor"),
    "actors/turns": ("decider", "state", "evolve", "effects"),  # `execution` performs them.
    "actors/approvals": ("decider", "state", "evolve", "effects", "executor"),
    "actors/session_snapshots": ("decider",),
    "actors/surfaces": ("decider",),  # Machines only: states and effects are their rows'.
    "actors/hooks": ("decider",),  # The rules of its changes, and their fold, are `realm_hooks`.
    "actors/leases": ("decider",),
    "actors/peers": ("decider",),
}
"""The packages of the families, and the modules each has."""

BASE_DECIDERS: Final = ("actors/kernel", "actors/kernel/machines")
"""Have the deciders that all others derive from, and belong to no family."""

NEW_CONCERN: Final = ("decider", "state", "evolve")

NOT_THE_SHAPE: Final[dict[str, str]] = {
    "acting": "executor.py",
    "concern": "decider.py",
    "decision": "facts.py",
    "fold": "evolve.py, and what it derives of effects to effects.py",
    "lifecycle": "lifecycle_machine.py",
    "queue": "commands.py",
    "settings": "state.py",
    "snapshot": "<what>_view.py",
    "telling": "executor.py",
}
"""Modules a concern does not have, and where their content goes. A machine is in a module that is
called by its name (``turn_machine.py``)."""


def concern_shapes(modules: Iterable[Module]) -> Iterator[Finding]:
    """Who knows one concern finds the same thing in the file of the same name in all others."""
    folders: dict[str, list[Module]] = {}
    for module in modules:
        if module.path.startswith("actors/"):
            folders.setdefault(module.package, []).append(module)
    for folder, inside in sorted(folders.items()):
        names = {module.name for module in inside}
        if folder in CONCERNS or ("decider" in names and folder not in BASE_DECIDERS):
            shape = CONCERNS.get(folder, NEW_CONCERN)
            for name in shape:
                if name not in names:
                    path = f"{folder}/{name}.py"
                    yield Finding(path, path, "missing: every concern of this kind has this module")
            for module in inside:
                yield from _misplaced(module, shape)
        elif "concern" in names and folder not in BASE_DECIDERS:
            path = f"{folder}/concern.py"
            yield Finding(path, path, "a decider in a package that is none of a family: move it")


def _misplaced(module: Module, shape: Sequence[str]) -> Iterator[Finding]:
    """What a concern's module holds that all others have elsewhere."""
    if module.name in NOT_THE_SHAPE:
        do = f"no concern has a module of this name: {NOT_THE_SHAPE[module.name]}"
        yield Finding(module.path, module.path, do)
    for node in module.tree.body:
        name, place = _with_its_place(node)
        is_judged = place in shape or place == "*_machine"
        if is_judged and not fnmatchcase(module.name, place):
            where = f"{module.path}:{node.lineno}"
            yield Finding(f"{module.path}:{name}", where, f"`{name}` belongs into {place}.py")


def _with_its_place(node: ast.stmt) -> tuple[str, str]:
    """The name of what is defined, and the module that has such things; empty if any may."""
    match node:
        case ast.ClassDef(name=name, bases=bases):
            if "Effect" in [dotted(base) for base in bases]:
                return name, "effects"
            for ending in ("Decider", "Executor"):
                if name.endswith(ending):
                    return name, ending.lower()
        case ast.FunctionDef(name="effects" | "evolve" as name):
            return name, name
        case (
            ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=made))
            | ast.AnnAssign(target=ast.Name(id=name), value=ast.Call(func=made))
        ):
            if dotted(made.value if isinstance(made, ast.Subscript) else made) == "Machine":
                return name, "*_machine"
    return "", ""


# --- faces ----------------------------------------------------------------------------------------

FACE_NAMES_MAX: Final = 5

LARGER_FACES: Final[dict[str, tuple[int, str]]] = {
    "schemas": (21, "the words that a client's program needs for a run"),
    "actors/hooks": (15, "the words in which authors write hooks, and what a node does with them"),
    "actors/kernel/machines": (30, "the words in which the table of a machine is written"),
    "actors/sandbox": (18, "the words of the contract between a program and what executes it"),
    "bus": (6, "both clients, sync and async: what each opens, and what it returns"),
    "bus/client/machines": (16, "one class for each trait of the seed, and what they return"),
    "ops/gateways": (6, "what two gateways share, and one that a node itself is"),
    "bus/ports": (41, "a list by nature: every port of the bus, and the structs they exchange"),
}
"""Vocabularies: their names are what they are for. How many each has at most, and the reason."""


def large_faces(modules: Iterable[Module]) -> Iterator[Finding]:
    """A reader of a package sees at a glance what it is used for."""
    for module in modules:
        names = _offered(module) if module.is_face else 0
        most, _ = LARGER_FACES.get(module.package, (FACE_NAMES_MAX, ""))
        if names > most:
            do = f"offers {names} names, {most} are the limit: offer what assembles them"
            yield Finding(module.package, module.path, do, names - most)


def _offered(module: Module) -> int:
    """How many names its ``__all__`` has."""
    return sum(
        len(node.value.elts)
        for node in module.tree.body
        if isinstance(node, ast.Assign)
        and dotted(node.targets[0]) == "__all__"
        and isinstance(node.value, ast.List)
    )


OPEN_ROOMS: Final = ("schemas", "actors/keys", "actors/protection")
"""Here every module is public. In ``schemas`` each is a page of the dictionary, and ``facts`` are
read by family (``turn.Failed``). The others are libraries of pure functions: a page a subject, and
nothing inside."""

OPEN_MODULES: Final = ("evolve", "effects", "state", "*_machine")
"""Pages that are read as those of ``schemas`` are: a reader of facts folds them with the pure
function of the concern (``evolve.evolve``) into its ``state``, an executor performs what
``effects`` lists, and the catalogue and the tools of machines read the table of each."""


def imports_past_a_face(modules: Iterable[Module]) -> Iterator[Finding]:
    """Another room imports a package, not its inside: it offers what its ``__init__`` names.

    What lies beside the packages of ``bus``, ``actors`` and ``ops`` is public, like their faces.
    """
    modules = list(modules)
    paths = {module.path for module in modules}
    for module in modules:
        seen = set()
        for line, name in imports(module):
            target = _module_of(name, paths)
            package, _, file = target.rpartition("/")
            is_open = room_of(target) in OPEN_ROOMS or "/" not in package
            is_open |= any(fnmatchcase(file, f"{page}.py") for page in OPEN_MODULES)
            if target and not is_open and room_of(target) != room_of(module.path):
                if target not in seen:
                    face = f"rookery.{package.replace('/', '.')}"
                    do = f"imports {name}: import it from {face}, which has to name it"
                    yield Finding(module.path, f"{module.path}:{line}", do)
                seen.add(target)


def room_of(path: str) -> str:
    """The packages that know each other's insides: the bus, each concern, each tool of ``ops``."""
    parts = path.split("/")
    return "/".join(parts[:2]) if parts[0] in {"actors", "ops"} and len(parts) > 2 else parts[0]


def _module_of(name: str, paths: set[str]) -> str:
    """The path of the module a dotted name is in or is; empty if that is a face, or not ours."""
    parts = name.split(".")
    if parts[0] != "rookery":
        return ""
    for end in range(len(parts), 1, -1):
        path = "/".join(parts[1:end])
        if f"{path}/__init__.py" in paths:
            return ""
        if f"{path}.py" in paths:
            return f"{path}.py"
    return ""
