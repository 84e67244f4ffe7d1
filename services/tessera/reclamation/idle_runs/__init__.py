"""Runs that hold GPUs and use none."""
