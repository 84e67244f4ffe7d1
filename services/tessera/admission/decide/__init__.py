"""Admission's decisions, without I/O: `parse` reads a command, `verdict` judges a job, `fact` states the outcome."""
