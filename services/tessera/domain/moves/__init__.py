"""Runs that are asked to move, so that a job that waits finds its room in one piece; and their answers."""
