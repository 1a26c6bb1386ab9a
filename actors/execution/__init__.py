"""Driving runs: where turns, tools and the sandbox meet. What is decided here is decided nowhere:
rules are the concerns', and whatever stands was put on record by one of them.

A run with one call, step by step, and where to look. ``loop``: the bus's; ``actor``: the thread of
the family named; every ``stands`` is a commit, and what follows from it follows from that.

    kernel/command_router.py   Routing.deliver        loop    a request reaches a mailbox
    kernel/actor.py            FamilyActor.on_receive actor   whatever came meanwhile is decided
    admission/commands.py      accept                 session session.input_accepted, .run_prepared
    kernel/committer.py        Committer.accept       loop    it stands: those concerned hear of it
    turns/run_rules.py         DrivenRuns.react       turn    turn.started
    kernel/effect_runner.py    Effects.start          loop    that it stands is what makes it begin
    execution/executor.py      Runner.drive           loop    one run a session at a time
    execution/run_execution.py Work.go                loop    from the first step to the last
    execution/driver.py        SandboxDriver.begin    loop    the program runs on a sandbox's thread
    execution/calls.py         Calling.answers        loop    it wants a call, and waits for it
    turns/run_rules.py         DrivenRuns.take        turn    turn.tool_calls_returned
    tools/call_rules.py        Ledger.called          tool    tool.requested, .intent_recorded
    tools/executor.py          Acting.act             loop    the intent stands: the tool is called
    tools/host.py              LocalTools.call        loop    on a thread of the tools'
    tools/call_rules.py        Ledger.ended           tool    tool.completed or tool.failed
    tools/executor.py          Acting.tell            loop    it stands: the waiting run goes on
    execution/step_recorder.py RunRecord.end          loop    the program has ended
    turns/run_rules.py         DrivenRuns.take        turn    turn.completed
    admission/commands.py      finish                 session session.run_committed; the next
"""
