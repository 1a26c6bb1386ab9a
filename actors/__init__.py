"""Who decides: one package a concern, and the kernel that makes each of them an actor."""
