"""A scripted model that uses tools: ``README.md`` says what to type."""
