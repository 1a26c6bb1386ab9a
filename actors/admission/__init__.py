"""Session admission: the lifecycle of sessions, their claims, and the queue of their inputs."""
