"""Driving runs: where turns, tools and the sandbox meet. What is decided here is decided nowhere:
rules are the concerns', and whatever stands was put on record by one of them.

A run with one call, step by step, and where to look. ``loop``: the bus's; ``actor``: the thread of
the family named; every ``stands`` is a commit, and what follows from it follows from that.

    kernel/routing.py    Routing.deliver         loop     a request comes to its family's mailbox
    kernel/shell.py      FamilyActor.on_receive  actor    whatever came meanwhile is decided
    admission/queue.py   accept                  session  session.input_accepted, .run_prepared
    kernel/committer.py  Committer.accept        loop     it stands: those concerned hear of it
    turns/driven.py      DrivenRuns.react        turn     turn.started
    kernel/effects.py    Effects.start           loop     that it stands is what makes it begin
    runs/runner.py       Runner.drive            loop     one run a session at a time
    runs/work.py         Work.go                 loop     from the first step to the last
    runs/driver.py       SandboxDriver.begin     loop     the program runs, on a sandbox's thread
    runs/calling.py      Calling.answers         loop     it wants a call, and waits for it
    turns/driven.py      DrivenRuns.take         turn     turn.tool_calls_returned, .ops_registered
    tools/ledger.py      Ledger.called           tool     tool.requested, .intent_recorded
    tools/acting.py      Acting.act              loop     the intent stands: the tool is called
    tools/host.py        LocalTools.call         loop     on a thread of the tools'
    tools/ledger.py      Ledger.ended            tool     tool.completed or tool.failed
    tools/acting.py      Acting.tell             loop     it stands: whoever waits for it goes on
    runs/on_record.py    RunRecord.end           loop     the program has ended
    turns/driven.py      DrivenRuns.take         turn     turn.completed
    admission/queue.py   finish                  session  session.run_committed; the next one's turn
"""
