"""The decider of the family ``sandbox``: which snapshot a session's memory is restored from."""
