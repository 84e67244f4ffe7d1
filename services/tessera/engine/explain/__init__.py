"""Reasons in numbers, blockers, suggestions, and what-if questions on an overlay of the state."""
