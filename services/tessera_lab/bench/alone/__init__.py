"""Benches of a decision, a fold or an explanation alone."""
