"""Quotes of starts for whoever asks: of waiting jobs, how earlier ones held, and of a job that is not sent yet."""
