"""Files to run Rookery on several machines (``cluster/README.md``), and to join realms of several
sites (``mesh/README.md``).
"""
