"""The Python guest: how it is built, linked and spoken to."""
