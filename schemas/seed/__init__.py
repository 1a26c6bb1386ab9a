"""Types of the contract that no code uses yet."""
