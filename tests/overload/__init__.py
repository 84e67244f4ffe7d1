"""Overload of a platform of real processes, and what it must keep while it lasts: `python -m tests.overload`."""
