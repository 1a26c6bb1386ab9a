"""Programs reach files on mounts and no other file of the host, whatever they and other processes
do.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import sys
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from rookery.actors.tools import ToolCallContext, ToolError, ToolRegistry
from rookery.actors.tools.files.files import file_tools
from rookery.actors.tools.files.mounts import Mount
from rookery.schemas.calls import CapabilityLimits
from rookery.schemas.errors import Refused
from rookery.schemas.run import SideEffect

CANARY = "what no program may ever see"
SMALL = CapabilityLimits(max_request_bytes=100, max_response_bytes=100)


class Disk:
    """A host with two mounts, ``/data`` and ``/out``, beside files outside every mount."""

    def __init__(self, root: Path) -> None:
        self.data, self.out = root / "host" / "data", root / "host" / "out"
        self.secret = root / "host" / "secret.txt"
        for folder in (self.data / "sub", self.out / "sub"):
            folder.mkdir(parents=True)
        self.secret.write_text(CANARY)
        for folder in (self.data, self.out):
            (folder / "a.txt").write_text("a")
            (folder / "sub" / "b.txt").write_text("b")
        self.mounts = {"data": Mount(self.data), "out": Mount(self.out, writable=True)}
        self.registry = ToolRegistry.of(*file_tools(self.mounts))

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return call(self.registry, name, *args, **kwargs)

    def code(self, name: str, *args: Any) -> str:
        """The code of the expected refusal, whose text names no path of the host."""
        with pytest.raises(ToolError) as refusal:
            self.call(name, *args)
        assert str(self.data.parent) not in refusal.value.message
        return refusal.value.code


def call(registry: ToolRegistry, name: str, *args: Any, **kwargs: Any) -> Any:
    tool = registry.get(name)
    assert tool is not None
    return asyncio.run(finished(tool.call(ToolCallContext(name, list(args), kwargs))))


async def finished(answer: Any) -> Any:
    return await answer


def read(disk: Disk, path: str) -> str:
    text = disk.call("read_text", path)
    assert isinstance(text, str)
    return text


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


# --- what works -----------------------------------------------------------------------------------


def test_files_are_read_listed_and_written_by_virtual_paths(disk: Disk):
    assert read(disk, "/data/sub/b.txt") == "b"
    assert disk.call("list_dir", "/data") == ["a.txt", "sub"]
    written = disk.call("write_text", "/out/sub/new.txt", text="gr\u00fc\u00df")
    assert written == {"path": "/out/sub/new.txt", "bytes": 6}
    assert read(disk, "/out/sub/new.txt") == "gr\u00fc\u00df"
    assert (disk.out / "sub" / "new.txt").read_bytes() == "gr\u00fc\u00df".encode()


def test_a_file_has_one_path_however_it_is_written(disk: Disk):
    assert read(disk, "//data/./sub//b.txt") == "b"
    assert disk.call("write_text", "/out//./c", "1")["path"] == "/out/c"


def test_odd_file_names_are_valid(disk: Disk):
    odd = ("..\\a", "...", "..a", "%2e%2e", "\u2025", "a b", "-rf", "~", "e\u0301", "\U0001f98e")
    for name in odd:
        disk.call("write_text", f"/out/{name}", name)
        assert read(disk, f"/out/{name}") == name
        assert name in disk.call("list_dir", "/out")


def test_the_innermost_mount_counts(disk: Disk, tmp_path: Path):
    (tmp_path / "inner").mkdir()
    mounts = {"/": Mount(disk.data), "sub/deep": Mount(tmp_path / "inner", writable=True)}
    registry = ToolRegistry.of(*file_tools(mounts))
    call(registry, "write_text", "/sub/deep/x", "inner")
    assert (tmp_path / "inner" / "x").read_text() == "inner"
    assert call(registry, "read_text", "/a.txt") == "a"
    assert call(registry, "list_dir", "/sub") == ["b.txt", "deep"]
    with pytest.raises(ToolError, match="PERMISSION_DENIED"):
        call(registry, "write_text", "/a.txt", "x")


def test_capabilities_say_what_they_do_and_what_is_mounted(disk: Disk):
    effects = {c.name: (c.side_effect, c.idempotent) for c in disk.registry.capabilities()}
    assert effects == {
        "list_dir": (SideEffect.READ, True),
        "read_text": (SideEffect.READ, True),
        "write_text": (SideEffect.WRITE, True),
    }
    for capability in disk.registry.capabilities():
        assert capability.description.endswith("/data (read only), /out (read and write).")
        assert capability.input_schema["required"][0] == "path"
        assert capability.input_schema["additionalProperties"] is False
        assert capability.output_schema.keys() & {"type", "$ref"}


def test_results_pass_the_schemas_that_are_declared(disk: Disk):
    for name, args in (("read_text", ["/data/a.txt"]), ("list_dir", ["/data"])):
        tool = disk.registry.get(name)
        assert tool is not None
        assert tool.checks.check_result(disk.call(name, *args)).value == disk.call(name, *args)
    tool = disk.registry.get("write_text")
    assert tool is not None
    assert tool.checks.check_result(disk.call("write_text", "/out/x", "1")).value["bytes"] == 1


def test_there_are_no_tools_without_a_mount_and_none_to_write_without_a_writable_one(disk: Disk):
    assert file_tools({}) == []
    names = [tool.capability.name for tool in file_tools({"data": Mount(disk.data)})]
    assert names == ["read_text", "list_dir"]


# --- hostile paths --------------------------------------------------------------------------------

DENIED, INVALID = "PERMISSION_DENIED", "INVALID_ARGUMENT"
ABSENT, FAILED = "FILE_NOT_FOUND", "TOOL_ERROR"

HOSTILE = {
    "": DENIED,
    "data/a.txt": DENIED,
    "a.txt": DENIED,
    "./data/a.txt": DENIED,
    "~/a.txt": DENIED,
    "file:///data/a.txt": DENIED,
    "C:\\data\\a.txt": DENIED,
    "\\data\\a.txt": DENIED,
    " /data/a.txt": DENIED,
    "/": DENIED,
    "/etc/passwd": DENIED,
    "//etc/passwd": DENIED,
    "/proc/self/environ": DENIED,
    "/dev/zero": DENIED,
    "/dat/a.txt": DENIED,
    "/data2/a.txt": DENIED,
    "/Data/a.txt": DENIED,
    "/..": DENIED,
    "/../data/a.txt": DENIED,
    "/data/..": DENIED,
    "/data/../secret.txt": DENIED,
    "/data/sub/../a.txt": DENIED,
    "/data/sub/../../secret.txt": DENIED,
    "/data/./../secret.txt": DENIED,
    "/data//..//secret.txt": DENIED,
    "/data/a.txt\0": DENIED,
    "/data/a.txt\0.png": DENIED,
    "\0/data/a.txt": DENIED,
    "/data/link.txt": DENIED,
    "/data/inner.txt": DENIED,
    "/data/dangling": DENIED,
    "/data/loop": DENIED,
    "/data/up/secret.txt": DENIED,
    "/data/etc/passwd": DENIED,
    "/data/sub/root/etc/passwd": DENIED,
    "/data/fd/1": DENIED,
    "/data/pipe": DENIED,
    "/data/socket": DENIED,
    "/data/zero": DENIED,
    "/data/a\n.txt": INVALID,
    "/data/a\x7f.txt": INVALID,
    "/data/a\x85.txt": INVALID,
    "/data/\ud800": INVALID,
    "/data/\udc2e\udc2e/secret.txt": INVALID,
    "/data/" + "n" * 256: INVALID,
    "/data/" + "\u00fc" * 128: INVALID,
    "/data/" + "n/" * 2100: INVALID,
    "/data/.rookery-0": INVALID,
    "/data/none.txt": ABSENT,
    "/data/none/none.txt": ABSENT,
    "/data/.. /a.txt": ABSENT,
    "/data/..\\secret.txt": ABSENT,
    "/data/%2e%2e/secret.txt": ABSENT,
    "/data/\u2025/secret.txt": ABSENT,
    "/data/\uff0e\uff0e/secret.txt": ABSENT,
    "/data": FAILED,
    "/data/sub": FAILED,
    "/data/a.txt/b": FAILED,
    "/data/latin.txt": FAILED,
}


def set_traps(disk: Disk) -> None:
    """Create links, pipes and other traps in ``/data``. Only root can make devices, so a link to
    one is used."""
    links = {
        "link.txt": disk.secret,
        "inner.txt": disk.data / "a.txt",
        "dangling": disk.data / "nowhere",
        "loop": disk.data / "loop",
        "up": disk.data.parent,
        "etc": Path("/etc"),
        "sub/root": Path("/"),
        "fd": Path("/proc/self/fd"),
        "zero": Path("/dev/zero"),
    }
    for name, target in links.items():
        (disk.data / name).symlink_to(target)
    os.mkfifo(disk.data / "pipe")
    (disk.data / "latin.txt").write_bytes(b"\xfc")
    here = Path.cwd()
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        os.chdir(disk.data)  # The whole path could be longer than a socket address.
        try:
            listener.bind("socket")
        finally:
            os.chdir(here)


@pytest.fixture(scope="module")
def trapped(tmp_path_factory: pytest.TempPathFactory) -> Disk:
    disk = Disk(tmp_path_factory.mktemp("disk"))
    set_traps(disk)
    return disk


@pytest.mark.parametrize(("path", "code"), HOSTILE.items(), ids=map(ascii, range(len(HOSTILE))))
def test_a_hostile_path_is_refused_with_its_code(trapped: Disk, path: str, code: str):
    assert trapped.code("read_text", path) == code


@pytest.mark.parametrize(
    "path", [path for path, code in HOSTILE.items() if code in (DENIED, INVALID)], ids=ascii
)
def test_a_path_that_may_not_be_read_may_not_be_written_or_listed(trapped: Disk, path: str):
    trapped.mounts["data"] = Mount(trapped.data, writable=True)
    registry = ToolRegistry.of(*file_tools(trapped.mounts))
    for name, rest in (("write_text", ["overwritten"]), ("list_dir", [])):
        if name == "list_dir" and path in ("/data/pipe", "/data/socket"):
            continue  # They are no folders, which is another refusal.
        with pytest.raises(ToolError) as refusal:
            call(registry, name, path, *rest)
        assert refusal.value.code in (DENIED, INVALID)
    assert trapped.secret.read_text() == CANARY


def test_the_table_has_its_promised_length():
    assert len(HOSTILE) >= 30


def test_a_call_with_wrong_arguments_is_a_type_error(disk: Disk):
    for args in ([], [1], [None], [b"/data/a.txt"], ["/data/a.txt", "more"]):
        assert disk.code("read_text", *args) == "TYPE_ERROR"
    assert disk.code("write_text", "/out/x") == "TYPE_ERROR"
    with pytest.raises(ToolError, match="TYPE_ERROR"):
        disk.call("read_text", path="/data/a.txt", mode="r")


# --- special files and races ----------------------------------------------------------------------


def test_a_pipe_is_not_even_opened(disk: Disk):
    os.mkfifo(disk.out / "pipe")
    assert disk.code("read_text", "/out/pipe") == DENIED
    assert disk.code("write_text", "/out/pipe", "x") == DENIED
    with pytest.raises(OSError, match="No such device"):  # No process opened the end for reading.
        os.open(disk.out / "pipe", os.O_WRONLY | os.O_NONBLOCK)


class Intruder:
    """Another process that acts at the worst time: just before the system opens or renames
    ``name``."""

    def __init__(self) -> None:
        self._event, self._name = "", ""
        self._act: Callable[[], Any] = list
        sys.addaudithook(self._watch)  # An audit hook cannot be removed.

    def waits_for(self, event: str, name: str, act: Callable[[], Any]) -> None:
        self._event, self._name, self._act = event, name, act

    @property
    def has_acted(self) -> bool:
        return not self._event

    def _watch(self, event: str, args: tuple[Any, ...]) -> None:
        if event == self._event and self._name in args[:2]:
            self._event = ""
            self._act()


INTRUDER = Intruder()


def replace_by_link(path: Path, target: Path) -> None:
    path.rename(path.with_name("moved"))
    path.symlink_to(target)


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def test_a_link_put_in_the_place_of_a_file_meanwhile_is_not_followed(disk: Disk):
    path = disk.data / "a.txt"
    INTRUDER.waits_for("open", "a.txt", lambda: replace_by_link(path, disk.secret))
    assert disk.code("read_text", "/data/a.txt") == DENIED
    assert INTRUDER.has_acted


def test_a_pipe_put_in_the_place_of_a_file_meanwhile_blocks_no_call(disk: Disk):
    INTRUDER.waits_for("open", "a.txt", lambda: replace_by_pipe(disk.data / "a.txt"))
    assert disk.code("read_text", "/data/a.txt") == DENIED
    assert INTRUDER.has_acted


def test_a_link_put_in_the_place_of_a_folder_meanwhile_is_not_followed(disk: Disk):
    outside = disk.data.parent / "outside"
    outside.mkdir()
    (outside / "b.txt").write_text(CANARY)
    for name, args in (("read_text", []), ("list_dir", []), ("write_text", ["new"])):
        INTRUDER.waits_for("open", "sub", lambda: replace_by_link(disk.out / "sub", outside))
        path = "/out/sub" if name == "list_dir" else "/out/sub/b.txt"
        assert disk.code(name, path, *args) == DENIED
        assert INTRUDER.has_acted
        (disk.out / "sub").unlink()
        (disk.out / "moved").rename(disk.out / "sub")
    assert (outside / "b.txt").read_text() == CANARY


def test_a_link_put_where_a_file_is_about_to_appear_is_replaced_and_not_followed(disk: Disk):
    path = disk.out / "a.txt"
    INTRUDER.waits_for("os.rename", "a.txt", lambda: replace_by_link(path, disk.secret))
    disk.call("write_text", "/out/a.txt", "new")
    assert INTRUDER.has_acted
    assert (path.is_symlink(), path.read_text()) == (False, "new")
    assert disk.secret.read_text() == CANARY


def test_a_folder_moved_away_meanwhile_is_still_the_folder(disk: Disk, tmp_path: Path):
    """An open folder stays the same folder; its path is not resolved again."""
    INTRUDER.waits_for("open", "b.txt", lambda: (disk.data / "sub").rename(tmp_path / "elsewhere"))
    assert read(disk, "/data/sub/b.txt") == "b"
    assert INTRUDER.has_acted


# --- writing --------------------------------------------------------------------------------------


def test_a_read_only_mount_refuses_writes(disk: Disk):
    assert disk.code("write_text", "/data/a.txt", "x") == DENIED
    assert disk.code("write_text", "/data/new.txt", "x") == DENIED
    assert sorted(os.listdir(disk.data)) == ["a.txt", "sub"]


def test_writing_replaces_the_name_and_leaves_the_file_that_had_it(disk: Disk):
    os.link(disk.secret, disk.out / "second-name")
    with (disk.out / "a.txt").open() as open_before:
        disk.call("write_text", "/out/a.txt", "new")
        assert open_before.read() == "a"
    disk.call("write_text", "/out/second-name", "new")
    assert (disk.out / "second-name").read_text() == "new"
    assert disk.secret.read_text() == CANARY


def test_a_file_keeps_its_permissions_when_it_is_replaced(disk: Disk):
    (disk.out / "a.txt").chmod(0o640)
    disk.call("write_text", "/out/a.txt", "new")
    assert stat.S_IMODE((disk.out / "a.txt").stat().st_mode) == 0o640


def test_a_read_only_file_is_not_replaced(disk: Disk):
    (disk.out / "a.txt").chmod(0o444)
    assert disk.code("write_text", "/out/a.txt", "new") == DENIED
    assert read(disk, "/out/a.txt") == "a"


def test_a_folder_is_neither_made_nor_replaced_by_writing(disk: Disk):
    assert disk.code("write_text", "/out/sub", "x") == FAILED
    assert disk.code("write_text", "/out", "x") == FAILED
    assert disk.code("write_text", "/out/none/x", "x") == ABSENT
    assert disk.code("write_text", "/out/a.txt/x", "x") == FAILED


def test_a_cancelled_write_leaves_nothing(disk: Disk):
    tool = disk.registry.get("write_text")
    assert tool is not None
    ctx = ToolCallContext("write_text", ["/out/a.txt", "new"], {}, cancelled=lambda: True)
    with pytest.raises(ToolError, match="CANCELLED"):
        asyncio.run(finished(tool.call(ctx)))
    assert sorted(os.listdir(disk.out)) == ["a.txt", "sub"]
    assert read(disk, "/out/a.txt") == "a"


def test_a_reader_sees_the_whole_old_file_or_the_whole_new_one(disk: Disk):
    ended = threading.Event()
    sizes = set()

    def look() -> None:
        while not ended.is_set():
            sizes.add(len((disk.out / "a.txt").read_bytes()))

    reader = threading.Thread(target=look)
    disk.call("write_text", "/out/a.txt", "x" * 200_000)
    reader.start()
    for size in (100_000, 200_000) * 10:
        disk.call("write_text", "/out/a.txt", "x" * size)
    ended.set()
    reader.join()
    assert sizes <= {100_000, 200_000}


def test_a_partial_file_of_an_earlier_process_is_not_written_to(disk: Disk):
    for number in range(1000):
        (disk.out / f".rookery-{os.getpid()}-{number}").write_text("left behind")
    disk.call("write_text", "/out/a.txt", "new")
    assert (disk.out / "a.txt").read_text() == "new"
    assert disk.call("list_dir", "/out") == ["a.txt", "sub"]


def test_no_call_leaves_anything_open(disk: Disk):
    set_traps(disk)
    before = len(os.listdir("/dev/fd"))
    for path in (
        "/out/sub/b.txt",
        "/out/none/b",
        "/data/up/a",
        "/data/pipe",
        "/out/sub",
        "/out/a/b",
    ):
        for name, rest in (("read_text", []), ("list_dir", []), ("write_text", ["x"])):
            with suppress(ToolError):
                disk.call(name, path, *rest)
    assert len(os.listdir("/dev/fd")) == before


def test_text_that_is_not_unicode_is_refused(disk: Disk):
    assert disk.code("write_text", "/out/x", "\ud800") == INVALID


# --- limits ---------------------------------------------------------------------------------------


def test_a_file_above_the_limit_is_refused_and_no_part_of_it_is_written(disk: Disk):
    disk.registry = ToolRegistry.of(*file_tools(disk.mounts, limits=SMALL))
    (disk.data / "large.txt").write_text("x" * 101)
    (disk.data / "fits.txt").write_text("x" * 100)
    assert len(read(disk, "/data/fits.txt")) == 100
    assert disk.code("read_text", "/data/large.txt") == "PAYLOAD_TOO_LARGE"
    assert disk.code("write_text", "/out/x", "\u00fc" * 51) == "PAYLOAD_TOO_LARGE"
    assert sorted(os.listdir(disk.out)) == ["a.txt", "sub"]
    for number in range(20):
        (disk.data / f"file-{number}").touch()
    assert disk.code("list_dir", "/data") == "PAYLOAD_TOO_LARGE"


def test_names_that_no_program_can_spell_are_not_listed(disk: Disk):
    for name in (b"\xff", b"a\nb", b".rookery-0123"):
        os.close(os.open(os.path.join(os.fsencode(disk.data), name), os.O_CREAT))
    assert disk.call("list_dir", "/data") == ["a.txt", "sub"]


# --- configuration --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["..", "a/../b", "a\0b", "x" * 300, "\n"])
def test_a_mount_needs_a_plain_name(disk: Disk, name: str):
    with pytest.raises(Refused, match="CONFIG_INVALID"):
        file_tools({name: Mount(disk.data)})


def test_a_mount_needs_a_folder(disk: Disk):
    for path in (disk.secret, disk.data / "none"):
        with pytest.raises(Refused, match="CONFIG_INVALID"):
            file_tools({"data": Mount(path)})
