"""The house in numbers, and what is left to do: ``python -m tests.laws.census``.

Without an option it prints the numbers of the whole. ``--list`` shows every finding of some laws
(or of all), allowed or not. ``--shrink`` writes the allow-lists for what is found today, unless one
would grow. ``--rebase`` does so for one law even then: a package that is divided has more insides
to be imported, until its parts have faces.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Final

from tests.laws import names, shapes
from tests.laws.findings import ALLOWED, Finding, counted, judged, read, shrunk, toml, unsettled
from tests.laws.outline import outline, overhead
from tests.laws.source import PRODUCT, ROOT, Module, files, modules
from tests.laws.vocabulary import CALL_NAMES, EVERYDAY_METHODS, SETTLED, words

__all__ = ["LAWS", "broken", "main", "numbers", "reasons_for_long_files"]

REASONS: Final = "reasons_for_long_files"


def _product() -> tuple[Module, ...]:
    return modules(*PRODUCT)


def _everything() -> tuple[Module, ...]:
    return modules(*PRODUCT, "tests")


@cache
def _texts(*folders: str) -> dict[str, str]:
    """Path and text of all modules, unparsed."""
    paths = [path for path in files() if path.suffix == ".py"]
    return {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for path in paths
        if path.relative_to(ROOT).parts[0] in folders
    }


def _fact_tags() -> list[str]:
    lines = (ROOT / "tests/wire/names.txt").read_text(encoding="utf-8").splitlines()
    return [line.removeprefix("fact ") for line in lines if line.startswith("fact ")]


LAWS: Final[dict[str, Callable[[], Iterable[Finding]]]] = {
    "repeated_classes": lambda: names.repeated_classes(_product()),
    "participle_modules": lambda: names.participle_modules(_texts(*PRODUCT, "tests")),
    "everyday_methods": lambda: names.everyday_methods(_product()),
    "synonyms_in_names": lambda: names.synonyms_in_names(_product()),
    "synonyms_in_tests": lambda: names.synonyms_in_tests(_texts("tests")),
    "synonyms_in_test_names": lambda: names.synonyms_in_test_names(_texts("tests")),
    "fact_literals": lambda: names.fact_literals(_product(), _fact_tags()),
    "crowded_folders": lambda: shapes.crowded_folders(_product()),
    "concern_shapes": lambda: shapes.concern_shapes(_product()),
    "imports_past_a_face": lambda: shapes.imports_past_a_face(_product()),
    "large_faces": lambda: shapes.large_faces(_product()),
    "long_functions": lambda: shapes.long_functions(_everything()),
}


@cache
def _found(law: str) -> tuple[Finding, ...]:
    return tuple(LAWS[law]())


def broken(law: str) -> list[str]:
    """What is found beyond the law's allow-list, and entries of it that are not needed."""
    return judged(law, _found(law), read().get(law, {}), SETTLED.get(law, {}))


def reasons_for_long_files() -> dict[str, str]:
    return read().get(REASONS, {})


# --- numbers --------------------------------------------------------------------------------------


def numbers() -> Iterator[tuple[str, str]]:
    """What is compared before and after."""
    product = _product()
    lines = [len(module.text.splitlines()) for module in product]
    least, most = shapes.LINES_USUAL
    yield "files", f"{len(lines):,}"
    yield "lines", f"{sum(lines):,}"
    yield "median file", f"{statistics.median(lines):g} lines"
    yield f"files below {least} lines", str(sum(count < least for count in lines))
    yield f"files above {most} lines", str(sum(count > most for count in lines))
    yield "lines of imports and __all__", f"{sum(map(overhead, product)):,}"
    yield from _numbers_of_the_call(product)
    repeated = counted(_found("repeated_classes"))
    yield "class names used twice or more", f"{len(repeated)} by {sum(repeated.values())} classes"
    yield "methods with poetic names", f"{_size('everyday_methods')} and {_compounds()} compounds"
    yield from _numbers_of_names()
    for law in ("crowded_folders", "concern_shapes", "imports_past_a_face"):
        yield law.replace("_", " "), str(len(_found(law)))
    yield "functions with a long body", str(len(list(shapes.long_functions(product))))
    yield "packages whose face names nothing", str(sum(map(_is_bare, product)))
    large = counted(_found("large_faces"))
    yield "faces that are too large", f"{len(large)}, by {sum(large.values())} names"


def _numbers_of_the_call(product: Sequence[Module]) -> Iterator[tuple[str, str]]:
    classes = [kind.name for module in product for kind in outline(module).classes]
    left = [name for name in classes if name in CALL_NAMES]
    of_calls = {name for name in classes if "call" in words(name)}
    yield "names for the call", f"{len(set(left))} by {len(left)} classes"
    yield "classes with Call in their name", str(len(of_calls))


def _numbers_of_names() -> Iterator[tuple[str, str]]:
    in_tests = sum(finding.key.startswith("tests/") for finding in _found("participle_modules"))
    in_product = len(_found("participle_modules")) - in_tests
    yield "modules named by participles", f"{in_product} and {in_tests} of tests"
    distinct = len(counted(_found("synonyms_in_names")))
    yield "synonyms in names", f"{distinct} names, {_size('synonyms_in_names')} definitions"
    yield "synonyms in modules and classes of tests", str(_size("synonyms_in_tests"))
    yield "synonyms in names of tests", str(_size("synonyms_in_test_names"))
    yield "fact literals outside schemas", str(_size("fact_literals"))


def _size(law: str) -> int:
    return sum(finding.size for finding in _found(law))


def _compounds() -> int:
    """Functions with a poetic verb beside other words: fine where nothing plainer can be said."""
    return sum(
        len(parts) > 1 and not EVERYDAY_METHODS.keys().isdisjoint(parts)
        for module in _product()
        for function in outline(module).functions
        for parts in [words(function.name)]
    )


def _is_bare(module: Module) -> bool:
    return module.is_face and "__all__" not in module.text


# --- the command ----------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.laws.census", description=__doc__)
    laws = ", ".join(LAWS)
    parser.add_argument("--list", nargs="*", metavar="LAW", help=f"findings of these: {laws}")
    parser.add_argument("--shrink", action="store_true", help="write shorter allow-lists")
    parser.add_argument("--rebase", metavar="LAW", choices=LAWS, help="write this one anew")
    asked = parser.parse_args(arguments)
    if asked.list is not None:
        for law in asked.list or LAWS:
            for finding in _found(law):
                print(f"{law}: {finding.where}: {finding.do}")
        return 0
    if asked.shrink or asked.rebase:
        return _write(asked.rebase)
    for what, number in numbers():
        print(f"{what + ':':<42} {number}")
    return 0


def _write(rebased: str | None) -> int:
    """Writes shorter allow-lists, or one anew; says of which laws more is found than is allowed."""
    lists, longer = read(), []
    for law in [rebased] if rebased else LAWS:
        allowed = lists.get(law, {})
        today = unsettled(counted(_found(law)), SETTLED.get(law, {}))
        shorter = today if rebased else shrunk(today, allowed)
        if shorter is None:
            longer.append(law)
        else:
            lists[law] = shorter
            print(f"{law}: {sum(allowed.values())} before, {sum(shorter.values())} now")
    ALLOWED.write_text(toml({law: lists.get(law, {}) for law in (REASONS, *LAWS)}), "utf-8")
    for law in longer:
        print(*broken(law), f"{law}: more than is allowed, left as it was", sep="\n")
    return 1 if longer else 0


if __name__ == "__main__":
    sys.exit(main())
