"""The options of every command, the configuration they select, and times as arguments.

A time is a duration before now, or a date and time. A date without a zone is in local time, as all
printed times are.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from datetime import datetime
from getpass import getuser
from pathlib import Path
from shlex import quote
from typing import Annotated, Final

from cyclopts import Parameter

from rookery.ops.config import LoadedConfig, load
from rookery.schemas.errors import Refused

__all__ = [
    "NO_OPTIONS",
    "NO_TOOLS",
    "ActorOption",
    "NodeTools",
    "Options",
    "actor",
    "parse_duration_ms",
    "parse_time_ms",
]

ActorOption = Annotated[
    str | None, Parameter(name="--as", help="Name of the actor; default: the login name.")
]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Options:
    """The realm to work in and the form of the output."""

    realm: Annotated[str | None, Parameter(help="Realm to work in.")] = None
    url: Annotated[
        str | None, Parameter(help="URL of a NATS server; default: the embedded one.")
    ] = None
    store: Annotated[str | None, Parameter(help="Store of the embedded server.")] = None
    config: Annotated[Path | None, Parameter(help="Configuration file.")] = None
    json: Annotated[bool, Parameter(help="Print JSON.", negative="", show_default=False)] = False

    def load(self, **flags: object) -> LoadedConfig:
        """The configuration with these options and further ``flags`` (dotted keys) on top."""
        common = {"realm": self.realm, "url": self.url, "store": self.store}
        return load(
            environ=os.environ,
            directory=Path.cwd(),
            file=self.config,
            flags=common | flags,
        )


NO_OPTIONS = Options()


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class NodeTools:
    """The tools of the node that the command starts."""

    tools: Annotated[
        str | None, Parameter(help="MODULE:OBJECT of functions that programs may call.")
    ] = None
    mount: Annotated[
        list[str] | None,
        Parameter(help="Folder that tools read, and write with :rw: NAME=DIR[:rw].", negative=""),
    ] = None
    resources: Annotated[
        bool | None,
        Parameter(help="Offer resource_resolve and resource_read to programs.", negative=""),
    ] = None
    peers: Annotated[
        bool | None,
        Parameter(help="Let programs send to peers, and receive from them.", negative=""),
    ] = None
    allow_http: Annotated[
        list[str] | None,
        Parameter(
            help="Server that tools may reach: [METHOD[+METHOD]=]URL[ NETWORK...].", negative=""
        ),
    ] = None

    @property
    def flags(self) -> dict[str, object]:
        """The options by their keys in the configuration."""
        return {
            "node.tools": self.tools,
            "node.mounts": self.mount,
            "resources.tools": self.resources,
            "peers.tools": self.peers,
            "node.allow_http": self.allow_http,
        }

    @property
    def typed(self) -> str:
        """The options as typed; empty if there are none."""
        words = [] if self.tools is None else [f"--tools {self.tools}"]
        words += [f"--mount {quote(text)}" for text in self.mount or ()]
        words += [f"--allow-http {quote(text)}" for text in self.allow_http or ()]
        words += ["--resources"] if self.resources else []
        words += ["--peers"] if self.peers else []
        return " ".join(words)


NO_TOOLS = NodeTools()


def actor(as_: str | None) -> str:
    """The actor of a command: the name in the option, else the login name."""
    if as_:
        return as_
    try:
        return getuser()
    except (KeyError, OSError):  # A container's user may have no name.
        return f"uid {os.getuid()}"


_AGO: Final = re.compile(r"(\d{1,6})([smhd])")
_UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_duration_ms(text: str) -> int:
    """``10m`` is ten minutes."""
    if (found := _AGO.fullmatch(text)) is None:
        raise Refused(
            "INVALID_ARGUMENT", f"{text[:80]!r} is no duration", hint="use 30s, 10m, 2h or 1d"
        )
    return int(found[1]) * _UNITS_MS[found[2]]


def parse_time_ms(text: str, now_ms: int) -> int:
    """``10m`` is ten minutes before ``now_ms``; ``2026-05-01T12:00`` is a local time."""
    if ago := _AGO.fullmatch(text):
        return now_ms - int(ago[1]) * _UNITS_MS[ago[2]]
    try:
        return int(datetime.fromisoformat(text).astimezone().timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise Refused(
            "INVALID_ARGUMENT",
            f"{text[:80]!r} is no time",
            hint="use 30s, 10m, 2h or 1d for a time before now, or 2026-05-01T12:00",
        ) from None
