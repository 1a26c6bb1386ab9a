"""Authoring of tools: the decorator, signatures, the registry, and loading a module."""
