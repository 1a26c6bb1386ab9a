"""Rights, checked before each intent: which calls a run may make; and what facts must not show:
sensitive values of calls, and credentials.

The effective rights of a call are those of its run, frozen when it started, those of its session,
and what was revoked in its session or in one that the session's memory is from.

Sensitive arguments and results are sealed before they are recorded, and opened for the program, the
tool and nothing else.

``checks`` says what the rights of a run allow, of calls and of tools in sight, and ``revocations``
which of them were revoked. ``approval_rules`` are rules in text: they approve a call, or ask.
``sensitive_values`` seals arguments and results, ``scrubber`` takes credentials out of what is
printed.
"""
