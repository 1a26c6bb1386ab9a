"""Tools as their authors write them: the decorator, signatures, and loading a module."""
