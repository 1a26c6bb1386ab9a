"""Files and the web for programs: ``rookery up --tools rookery.ops.examples.workspace:registry``.

Programs get ``read_text``, ``list_dir`` and ``write_text`` for ``/work``, which is the folder
``work`` in the node's working directory, and ``fetch_text``, ``fetch_json`` and ``http_get`` for
one part of one server. No path, link or redirect reaches anything else on the disk or the network.
"""

from __future__ import annotations

from pathlib import Path

from rookery.actors.tools import ToolRegistry
from rookery.actors.tools.files import Mount, file_tools
from rookery.actors.tools.web import Allowed, http_tools

__all__ = ["registry"]

WORK = Path("work")
WORK.mkdir(exist_ok=True)  # Only a folder that exists can be mounted.

registry = ToolRegistry.of(
    *file_tools({"work": Mount(WORK, writable=True)}),
    *http_tools([Allowed("https://docs.python.org/3/")]),
)
