"""The hooks that operators register for a realm.

``realm_hooks`` has the rules of a change and its fold, ``live_hooks`` follows the facts on each
node and serves the verbs of operators, ``trials`` invokes a hook for recorded calls.
"""
