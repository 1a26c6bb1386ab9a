"""Tools for the state machines: traces, exploration, diagrams and tables.

They work on ``rookery.actors.machine_catalogue``. All of it is pure, except the command that writes
the generated tables.
"""
