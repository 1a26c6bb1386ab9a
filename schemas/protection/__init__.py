"""What a run may call, and values that facts do not show."""
