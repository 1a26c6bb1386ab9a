"""How it travels: the only package that knows NATS; everybody else knows its ports."""
