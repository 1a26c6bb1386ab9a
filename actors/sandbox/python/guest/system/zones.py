"""The time zones of the IANA database for ``zoneinfo``, from the package ``tzdata``.

The build stores them in a file beside this one; the guest holds them in memory.
"""

from __future__ import annotations

import base64
import io
import json
import os
import zlib

__all__ = ["FILE", "ZONES", "Zones"]

FILE = "zones.json"


class Zones:
    def __init__(self) -> None:
        with open(os.path.join(os.path.dirname(__file__), FILE), encoding="utf-8") as file:
            packed = json.load(file)
        same: dict[str, bytes] = {}
        self._data = {
            name: same.setdefault(text, base64.b64decode(text)) for name, text in packed.items()
        }

    def load(self, key: str) -> io.BytesIO:
        """The data of a zone, as ``zoneinfo`` reads it."""
        from zoneinfo import ZoneInfoNotFoundError  # noqa: PLC0415 - loaded after the library.

        if key not in self._data:
            raise ZoneInfoNotFoundError(f"No time zone found with key {key}")
        return io.BytesIO(zlib.decompress(self._data[key]))

    def names(self) -> set[str]:
        return set(self._data)

    def install(self) -> None:
        import zoneinfo._common  # noqa: PLC0415 - the same.
        import zoneinfo._tzpath  # noqa: PLC0415

        zoneinfo.reset_tzpath(to=[])
        zoneinfo._common.load_tzdata = self.load  # type: ignore[assignment]
        zoneinfo.available_timezones = self.names


ZONES = Zones()
