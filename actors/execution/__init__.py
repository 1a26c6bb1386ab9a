"""Execution of runs: the executor of the turns' effects, and the queries about past runs.

This package decides nothing. The deciders of admission, turns and approvals hold the rules and
write all facts; the executor here starts programs, waits for their calls and records the steps.

One run with one call, step by step. The third column is the actor that handles it: a family is the
actor of that family, ``actor`` is any of them, and ``loop`` is code beside them. All of it runs on
the bus's event loop, but for synchronous tools and for programs after their first 5 ms. A step that
names a fact is one commit; with a ``+`` the fact is in the commit of the step before. The start of
a run waits for its first step, at most ``STEP_HOLD_S``, and is committed with it; so does a step
whose calls only read. ``session.run_committed`` waits for the session's next command.

    kernel/command_router.py   CommandRouter.deliver            loop    a request enters a mailbox
    kernel/actor.py            FamilyActor.on_receive           actor   the actor drains its mailbox
    admission/commands.py      accept                           session session.input_accepted
    kernel/committer.py        Committer.submit                 loop    one commit; readers get it
    turns/run_rules.py         RunRules.react                   turn    turn.started
    kernel/effect_runner.py    EffectRunner.start               loop    effects of the start begin
    execution/executor.py      RunExecutor.execute              loop    one run a session at a time
    execution/run_execution.py RunExecution.run                 loop    from first step to last
    execution/driver.py        SandboxDriver.begin              loop    the sandbox runs the program
    execution/calls.py         CallCoordinator.request_and_wait loop    the program waits for a call
    turns/run_rules.py         RunRules.record_step             turn    + turn.tool_calls_returned
    turns/run_calls.py         RunCalls.follow                  turn    + tool.intent_recorded
    tools/attempts/executor.py CallExecutor.execute             loop    the executor calls the tool
    tools/functions/local_host.py LocalToolHost.call            loop    on a thread of its own
    tools/attempts/attempts.py CallNotifier.pass_unrecorded     loop    the program goes on at once
    execution/step_recorder.py StepRecorder.end                 loop    the program has ended
    turns/run_calls.py         RunCalls.record_outcomes         turn    tool.completed or .failed
    turns/run_rules.py         RunRules.record_step             turn    + turn.completed
    admission/executor.py      RunReplies.send_result           loop    its clients get the result
    admission/commands.py      end_run                          session session.run_committed

The outcome of a call is committed together with the step that continues with it: here the end, or
the next call. If that step takes longer than ``RECORD_ALONE_S``, and than the few turns of the loop
that a program waits for on a busy node, the outcome is committed alone. A start waits likewise.

If the call needs an approval, these steps follow ``turn.tool_calls_returned``: the run parks while
it waits, and resumes when the call has ended. Then the program continues as above.

    turns/run_calls.py         RunCalls.follow                 turn     tool.requested
    tools/attempts/executor.py CallExecutor.request_approval   loop     it asks for the approval
    approvals/requests.py      request_approval                approval approval.dispatch_intended
    approvals/executor.py      ApprovalExecutor.dispatch       loop     unless the inbox only waits
    approvals/executor.py      ApprovalExecutor.notify_waiting loop     the run learns why it waits
    execution/calls.py         CallCoordinator.wait            loop     all open calls wait: park
    execution/session_cache.py SessionCache.park               loop     the session leaves memory
    turns/run_rules.py         RunRules.park                   turn     turn.parked
    execution/executor.py      RunExecutor.send_interim        loop     a first reply to the client
    approvals/answers.py       AnswerRules.decide              approval approval.grant_issued
    approvals/executor.py      ApprovalExecutor.release_call   loop     it may use the grant now
    approvals/grants.py        consume                         approval approval.grant_consumed
    tools/calls/call_rules.py  CallRules.on_allowed            turn     tool.intent_recorded
    tools/attempts/executor.py CallExecutor.execute            loop     the executor calls the tool
    turns/run_calls.py         RunCalls.decide                 turn     tool.completed or .failed
    turns/run_rules.py         RunRules.unpark                 turn     + turn.unparked
    execution/session_cache.py SessionCache.prepare            loop     the session is rebuilt
    execution/driver.py        SandboxDriver.begin             loop     the program gets outcomes

If many approvals are answered together, ``Resumptions`` lets six runs at once use their grants.

If the session executed much since its last snapshot, ``park`` stores it with the run, and the last
two steps are ``SessionCache.restore_parked`` and ``SandboxDriver.resume_parked``.

A sleep takes the same way, without approvers: a timer of the bus ends its call.

    tools/calls/wait_rules.py  begin_wait                      turn     tool.awaited
    tools/attempts/waits.py    WaitExecutor.arm                loop     the bus stores the timer
    tools/calls/wait_rules.py  end_wait                        turn     tool.completed or .failed

An approved call has 38 of these steps, in 22 files. All files that it runs through, with what they
are made of, are listed by ``python -m tests.docs.call_road``. ``node_execution`` assembles what
executes the runs of a node.
"""

from rookery.actors.execution.driver import RunProvisioner
from rookery.actors.execution.history import EntityReader
from rookery.actors.execution.node_execution import ExecutionPorts, NodeExecution
from rookery.actors.execution.result_sender import ResultSender

__all__ = ["EntityReader", "ExecutionPorts", "NodeExecution", "ResultSender", "RunProvisioner"]
