"""The options of every command, and the configuration they select."""

from __future__ import annotations

import os
from dataclasses import dataclass
from getpass import getuser
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from rookery.ops.config import LoadedConfig, load

__all__ = ["NO_OPTIONS", "ActorOption", "Options", "actor"]

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


def actor(as_: str | None) -> str:
    """The actor of a command: the name in the option, else the login name."""
    if as_:
        return as_
    try:
        return getuser()
    except (KeyError, OSError):  # A container's user may have no name.
        return f"uid {os.getuid()}"
