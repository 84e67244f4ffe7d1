"""Batch scripts: the job that one asks for, and what of it no pod can mean."""
