"""What a run may call, values that facts do not show, and the settings of bindings."""
