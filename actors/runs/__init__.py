"""Driving runs: where turns, tools and the sandbox meet. What is decided here is decided nowhere:
rules are the concerns', and whatever stands was put on record by one of them."""
