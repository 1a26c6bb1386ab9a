"""Built-in tools for files and HTTP, each limited by an allow-list."""
