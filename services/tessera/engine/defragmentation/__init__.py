"""Relocations of runs that make room for a waiting job in one piece."""
