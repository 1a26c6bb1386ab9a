"""The environment of the peers: a virtual environment and npm packages in the user's cache.

Packages are installed when they are first needed, from the indexes that pip and npm are configured
with. What cannot be installed makes its peer ``PeerUnavailable``, and is tried again the next time.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from rookery.ops.bench.peers.child_process import PeerUnavailable

__all__ = ["Environment"]

_INSTALL_PATIENCE_S = 600
_VERSIONS = """
import json, sys
from importlib.metadata import PackageNotFoundError, version
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        pass
print(json.dumps(found))
"""


class Environment:
    """One folder with everything the peers need."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def python(self) -> Path:
        """The interpreter of the peers."""
        return self.folder / "venv" / "bin" / "python"

    @property
    def modules(self) -> Path:
        """The folder of npm's packages."""
        return self.folder / "node_modules"

    def provide_python(self, packages: Sequence[str]) -> dict[str, str]:
        """Install what is missing of these packages from PyPI; the versions."""
        if not self.python.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            _run([sys.executable, "-m", "venv", self.python.parents[1]])
        names = [package.partition("[")[0] for package in packages]
        found = self._versions(names)
        if found.keys() != set(names):
            _run([self.python, "-m", "pip", "install", "--quiet", *packages])
            found = self._versions(names)
        return found

    def provide_node(self, packages: Sequence[str]) -> dict[str, str]:
        """Install what is missing of these packages from npm; the versions."""
        if shutil.which("node") is None or shutil.which("npm") is None:
            raise PeerUnavailable("node and npm are not installed (Debian packages nodejs, npm)")
        manifests = {name: self.modules / name / "package.json" for name in packages}
        if not all(manifest.exists() for manifest in manifests.values()):
            self.modules.mkdir(parents=True, exist_ok=True)
            _run(["npm", "install", "--no-audit", "--no-fund", *packages], self.folder)
        return {name: _npm_version(manifest) for name, manifest in manifests.items()}

    def _versions(self, names: Sequence[str]) -> dict[str, str]:
        output = _run([self.python, "-c", _VERSIONS, *names])
        return msgspec.json.decode(output, type=dict[str, str])


def _npm_version(manifest: Path) -> str:
    version: str = msgspec.json.decode(manifest.read_bytes())["version"]
    return version


def _run(command: Sequence[str | Path], folder: Path | None = None) -> str:
    """The output of a command; ``PeerUnavailable`` with its last line if it fails."""
    name = " ".join(str(part) for part in command)[-80:]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=_INSTALL_PATIENCE_S,
        )
    except subprocess.TimeoutExpired:
        raise PeerUnavailable(f"`{name}` took longer than {_INSTALL_PATIENCE_S} s") from None
    except OSError as error:
        raise PeerUnavailable(f"`{name}`: {error.strerror}") from None
    if done.returncode != 0:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise PeerUnavailable(f"`{name}`: {lines[-1].strip() if lines else 'failed'}")
    return done.stdout
