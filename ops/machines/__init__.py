"""Looking at the state machines: running traces through them, exploring, drawing and tabulating.

Everything here works on ``rookery.actors.machine_catalogue`` and is pure but for the command that
writes the generated tables; no rule of any machine stands here.
"""
