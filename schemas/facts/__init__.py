"""The facts of every family, one module a family. Wire names are pinned by a test."""
