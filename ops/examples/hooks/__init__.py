"""A guard of payments that is registered while the realm runs. ``README.md`` is the walk."""
