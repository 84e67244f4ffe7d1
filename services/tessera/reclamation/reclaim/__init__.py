"""Lent quota taken back, and relocations of runs."""
