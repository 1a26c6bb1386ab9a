"""Instances of guests: memory images, the threads that run them, and the pool of warm ones."""
