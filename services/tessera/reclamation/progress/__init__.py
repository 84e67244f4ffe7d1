"""Runs that report progress, and then none, or less of some pods than of others."""
