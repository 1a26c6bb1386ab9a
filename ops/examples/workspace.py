"""Files and the web for programs: ``rookery up --tools rookery.ops.examples.workspace:registry``.

Programs get ``read_text``, ``list_dir`` and ``write_text`` for ``/work``, the folder ``work`` of
where the node was started, and ``fetch_text``, ``fetch_json`` and ``http_get`` for one part of one
server. Nothing else of the disk or the network is theirs, whatever path, link or redirect they try.
"""

from __future__ import annotations

from pathlib import Path

from rookery.actors.tools import Allowed, Mount, ToolRegistry, file_tools, http_tools

__all__ = ["registry"]

WORK = Path("work")
WORK.mkdir(exist_ok=True)  # A folder that is not there cannot be mounted.

registry = ToolRegistry.of(
    *file_tools({"work": Mount(WORK, writable=True)}),
    *http_tools([Allowed("https://docs.python.org/3/")]),
)
