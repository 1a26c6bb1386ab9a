"""Execution of runs: the executor of the turns' effects, and the queries about past runs.

This package decides nothing. The deciders of admission, turns, tools and approvals hold the rules
and write all facts; the executor here starts programs, waits for their calls and records the steps.

One run with one call, step by step. The third column is the thread: ``loop`` is the bus's event
loop, a family is the actor thread of that family, and ``actor`` is any of them. A step that names a
fact is one commit.

    kernel/command_router.py   CommandRouter.deliver            loop    a request enters a mailbox
    kernel/actor.py            FamilyActor.on_receive           actor   the actor drains its mailbox
    admission/commands.py      accept                           session session.input_accepted
    kernel/committer.py        Committer.submit                 loop    one commit; readers get it
    turns/run_rules.py         RunRules.react                   turn    turn.started
    kernel/effect_runner.py    EffectRunner.start               loop    effects of the commit begin
    execution/executor.py      RunExecutor.execute              loop    one run a session at a time
    execution/run_execution.py RunExecution.run                 loop    from first step to last
    execution/driver.py        SandboxDriver.begin              loop    the sandbox runs the program
    execution/calls.py         CallCoordinator.request_and_wait loop    the program waits for a call
    turns/run_rules.py         RunRules.record_step             turn    turn.tool_calls_returned
    tools/call_rules.py        CallRules.on_requested           tool    tool.intent_recorded
    tools/executor.py          CallExecutor.execute             loop    the executor calls the tool
    tools/local_host.py        LocalToolHost.call               loop    on a thread of its own
    tools/call_rules.py        CallRules.on_outcome             tool    tool.completed or .failed
    tools/executor.py          CallExecutor.notify              loop    the waiting run continues
    execution/step_recorder.py StepRecorder.end                 loop    the program has ended
    turns/run_rules.py         RunRules.record_step             turn    turn.completed
    admission/commands.py      end_run                          session session.run_committed
"""
