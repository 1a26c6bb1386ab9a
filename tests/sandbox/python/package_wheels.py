"""Small wheels, made by the tests, for pip to find in a folder."""

from __future__ import annotations

import zipfile
from pathlib import Path

__all__ = ["GREETER", "write_wheel"]

GREETER = "rookery-test-greeter"


def write_wheel(
    folder: Path, name: str, files: dict[str, str], *, tag: str = "py3-none-any", needs: str = ""
) -> Path:
    """Write a wheel of version 1.0."""
    plain = name.replace("-", "_")
    info = f"{plain}-1.0.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    metadata += f"Requires-Dist: {needs}\n" if needs else ""
    files = {
        **files,
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n",
        f"{info}/RECORD": "",
    }
    path = folder / f"{plain}-1.0-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inside, text in files.items():
            archive.writestr(zipfile.ZipInfo(inside, (2024, 1, 1, 0, 0, 0)), text)
    return path
