"""The kernel: turns the pure rules of a decider into an actor. It contains no decider's rules."""
