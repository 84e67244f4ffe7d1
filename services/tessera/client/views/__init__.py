"""Output of commands: tables, explanations and stories of what was read."""
