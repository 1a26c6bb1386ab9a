"""The kernel: what makes a concern's pure rules an actor. It knows no rule of any concern."""
