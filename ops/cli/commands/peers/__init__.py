"""``rookery peers``: the roster of peers, exchanges with them, and the links between servers."""

from rookery.ops.cli.commands.peers.links import app

__all__ = ["app"]
