"""Guest builds of other nodes, without building any: a custom section more makes another digest.

To all that tell builds apart it is another build; its native code is the same, so nothing is
compiled either.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from rookery.actors.sandbox import open_sandbox
from rookery.actors.sandbox.python.build import GuestCache, cache_folder, source_key
from rookery.schemas.run import Language, RunRequest

__all__ = ["cache_with", "own_build", "with_section"]

_CUSTOM = 0


@cache
def own_build() -> bytes:
    """The Python guest of this user's cache, which has the native code of all guests then."""
    found = GuestCache(cache_folder(os.environ))
    with open_sandbox(bytes(32), found) as sandbox:  # The TypeScript guest is compiled at its use.
        sandbox.create("any", seed=b"", now_ms=0, tools=(), language=Language.TYPESCRIPT)
        request = RunRequest(session_id="any", code="1", language=Language.TYPESCRIPT)
        sandbox.submit(request, now_ms=0).result()
    return found.component(stub_wasi=True)


def with_section(wasm: bytes, name: str) -> bytes:
    """The same module or component, of another digest."""
    content = bytes([len(name)]) + name.encode()
    return wasm + bytes([_CUSTOM, len(content)]) + content


def cache_with(home: Path, component: bytes) -> Path:
    """A cache for ``XDG_CACHE_HOME=home`` whose own build is this one, and that knows no other."""
    folder = cache_folder({"XDG_CACHE_HOME": str(home)})
    built = folder / source_key(stub_wasi=True)
    built.mkdir(parents=True)
    folder.chmod(0o700)
    (built / "guest.wasm").write_bytes(component)
    for native in cache_folder(os.environ).glob("native-*"):
        (folder / native.name).symlink_to(native)
    return folder
