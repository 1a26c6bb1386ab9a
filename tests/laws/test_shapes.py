"""The cut of the house: folders of a natural size, concerns of one shape, packages with a face.

What broke these laws before there were any is in ``allowed.toml``, which may only shrink.
"""

from __future__ import annotations

import pytest

from tests.laws.census import broken
from tests.laws.findings import counted
from tests.laws.shapes import (
    BODY_LINES_MAX,
    CONCERNS,
    FACE_NAMES_MAX,
    FILES_MAX,
    LARGER_FACES,
    LARGER_FOLDERS,
    LINES_FREE,
    LINES_MAX,
    concern_shapes,
    crowded_folders,
    imports_past_a_face,
    large_faces,
    long_files,
    long_functions,
)
from tests.laws.source import PRODUCT, Module, expect_none, modules, written


@pytest.mark.parametrize(
    "law", ["crowded_folders", "concern_shapes", "imports_past_a_face", "large_faces"]
)
def test_the_checkout_breaks_no_law_about_its_cut(law: str):
    expect_none(broken(law))


# --- each law can be broken -----------------------------------------------------------------------


def folder(name: str, files: int) -> list[Module]:
    face = written(f"{name}/__init__.py", "")
    return [face, *(written(f"{name}/m{number}.py", "") for number in range(files))]


def test_a_folder_holds_what_a_glance_takes_in():
    modules = folder("bus", FILES_MAX) + folder("bus/nats", FILES_MAX + 2)
    assert counted(crowded_folders(modules)) == {"bus/nats": 2}


def test_a_folder_may_be_as_large_as_the_plan_says_and_no_larger():
    assert all(size > FILES_MAX for size in LARGER_FOLDERS.values())
    most = LARGER_FOLDERS["schemas"]
    assert not list(crowded_folders(folder("schemas", most)))
    assert counted(crowded_folders(folder("schemas", most + 1))) == {"schemas": 1}


def lines(count: int) -> list[Module]:
    return [written("bus/a.py", "\n" * count)]


def test_a_long_file_needs_a_reason_and_an_endless_one_has_none():
    reasons = {"bus/a.py": "one table"}
    assert not long_files(lines(LINES_FREE), {})
    assert "give the reason" in long_files(lines(LINES_FREE + 1), {})[0]
    assert "give the reason" in long_files(lines(LINES_FREE + 1), {"bus/a.py": " "})[0]
    assert not long_files(lines(LINES_MAX), reasons)
    assert "no reason is good" in long_files(lines(LINES_MAX + 1), reasons)[0]


@pytest.mark.parametrize("modules", [lines(LINES_FREE), []], ids=["short", "gone"])
def test_a_reason_that_is_not_needed_is_taken_out(modules: list[Module]):
    (found,) = long_files(modules, {"bus/a.py": "one table"})
    assert found.startswith("bus/a.py needs no reason any more")


def test_the_body_of_a_function_is_short_whatever_is_said_above_it():
    prose = '    """' + "Much is said.\n" * 30 + '    """\n'
    short = "    pass\n" * BODY_LINES_MAX
    text = f"def short():\n{prose}{short}\ndef long():\n{short}    pass\n"
    found = counted(long_functions([written("bus/a.py", text)]))
    assert found == {"bus/a.py:long": BODY_LINES_MAX + 1}


def concern(name: str, **texts: str) -> list[Module]:
    """A package with these modules, and empty ones for what its shape has beside them."""
    names = dict.fromkeys(CONCERNS.get(f"actors/{name}", ()), "") | texts
    return [written(f"actors/{name}/{module}.py", text) for module, text in names.items()]


def test_a_concern_has_the_modules_of_its_shape():
    assert not list(concern_shapes(concern("approvals")))
    assert counted(concern_shapes(concern("approvals")[1:])) == {"actors/approvals/decider.py": 1}
    new = written("actors/gardens/decider.py", "")
    assert list(counted(concern_shapes([new]))) == [
        "actors/gardens/evolve.py",
        "actors/gardens/state.py",
    ]


def test_no_concern_has_modules_of_another_shape():
    found = concern_shapes(concern("approvals", fold="", acting="", faults=""))
    assert list(counted(found)) == ["actors/approvals/acting.py", "actors/approvals/fold.py"]
    elsewhere = written("actors/sandbox/concern.py", "")
    assert list(counted(concern_shapes([elsewhere]))) == ["actors/sandbox/concern.py"]


def test_what_a_concern_holds_is_in_the_module_of_its_name():
    text = "\n".join(
        [
            "class StopRun(Effect, frozen=True): ...",
            "class TurnsDecider(Decider): ...",
            "class RunExecutor: ...",
            "class Other(RowEffect): ...",
            "def effects(state, fact): ...",
            "def evolve(state, fact): ...",
            'TURN: Final = Machine("turn")',
            'SLOT = Machine[Slot]("slot")',
        ]
    )
    everywhere = ["SLOT", "StopRun", "TURN", "TurnsDecider", "effects", "evolve"]
    found = concern_shapes(concern("turns", state=text))
    assert list(counted(found)) == [f"actors/turns/state.py:{name}" for name in everywhere]
    found = concern_shapes(concern("approvals", call_executor=text))
    assert "actors/approvals/call_executor.py:RunExecutor" in counted(found)
    found = concern_shapes(concern("turns", turn_machine="TURN = Machine()", effects="effects = 1"))
    assert not list(found)


def test_concerns_of_machines_only_have_their_rules_where_they_like():
    text = "def evolve(state, fact): ...\ndef effects(state, fact): ..."
    assert not list(concern_shapes(concern("leases", lease_rules=text)))


def test_others_import_a_package_and_not_its_inside():
    modules = [
        written("actors/tools/__init__.py", "from rookery.actors.tools.registry import R"),
        written("actors/tools/registry.py", "import rookery.actors.tools.attempts"),
        written("actors/tools/attempts.py", "from rookery.actors.tools.builtin.files import mount"),
        written("actors/tools/builtin/__init__.py", ""),
        written("actors/tools/builtin/files.py", "from rookery.actors.tools.attempts import State"),
        written("schemas/run.py", ""),
        written("actors/messages.py", ""),
        written("actors/tools/evolve.py", ""),
        written("actors/tools/state.py", ""),
        written(
            "ops/node.py",
            "from rookery.actors.tools import R\n"
            "from rookery.actors.tools import attempts\n"
            "from rookery.actors.tools.registry import R, S\n"
            "from rookery.schemas.run import RunRequest\n"
            "from rookery.actors.tools.evolve import evolve\n"
            "from rookery.actors.tools.state import State\n"
            "from rookery.actors.messages import AllowCall\n"
            "from rookery.actors.tools.builtin import files\n"
            "import nats.aio",
        ),
    ]
    found = list(imports_past_a_face(modules))
    assert [finding.where for finding in found] == [
        "ops/node.py:2",
        "ops/node.py:3",
        "ops/node.py:8",
    ]
    assert "import it from rookery.actors.tools.builtin" in found[-1].do


def face(package: str, names: int) -> Module:
    return written(
        f"{package}/__init__.py", f"__all__ = {[f'N{number}' for number in range(names)]}"
    )


def test_no_vocabulary_has_room_for_names_that_it_does_not_have():
    faces = {module.package: module for module in modules(*PRODUCT) if module.is_face}
    for package, (most, _) in LARGER_FACES.items():
        less = written(f"other/{package}/__init__.py", faces[package].text)
        (found,) = large_faces([less])
        assert found.size == most - FACE_NAMES_MAX


def test_a_face_offers_few_names_but_for_the_vocabularies():
    assert not list(large_faces([face("actors/tools", FACE_NAMES_MAX)]))
    assert counted(large_faces([face("actors/tools", FACE_NAMES_MAX + 2)])) == {"actors/tools": 2}
    most, reason = LARGER_FACES["bus/ports"]
    assert most > FACE_NAMES_MAX
    assert reason
    assert counted(large_faces([face("bus/ports", most + 1)])) == {"bus/ports": 1}
