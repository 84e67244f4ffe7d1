"""Benches of a whole platform."""
