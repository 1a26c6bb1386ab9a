"""More sessions than instances, more runs than threads, every kind of end at once.

The long form is ``python -m tests.sandbox.many_sessions``.
"""

from __future__ import annotations

import wasmtime

from rookery.actors.sandbox import Sandbox
from rookery.actors.sandbox.python.python_guest import PythonGuest
from tests.sandbox.many_sessions import KINDS, Crowd
from tests.sandbox.session_fixture import KEY


def test_every_outcome_and_every_effect_belongs_to_its_own_session(
    engine: wasmtime.Engine, guest: PythonGuest
):
    with Sandbox(engine, [guest], KEY, threads_max=8, live_max=12) as sandbox:
        crowd = Crowd(sandbox, 24, seed=4)
        crowd.work(8, lambda runs: runs < 6 * len(KINDS))
        assert crowd.wrong == []
        assert set(crowd.ends) == set(KINDS)
