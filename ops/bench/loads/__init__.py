"""The loads of the suites on a node, a journal or a sandbox."""
