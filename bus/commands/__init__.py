"""Commands on their way to an owner: the request endpoint, the inbox and the timers."""
