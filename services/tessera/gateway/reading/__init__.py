"""Answers from what is known: views, explanations, logs, events."""
