"""Health of machines, as far as it is known."""
