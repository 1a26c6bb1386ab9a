"""Files to run Rookery on several machines: ``cluster/README.md``."""
