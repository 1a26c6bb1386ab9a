"""What a run may call, values that facts do not show, and how nodes get the credentials of tools."""
