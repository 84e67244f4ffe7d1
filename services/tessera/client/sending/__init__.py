"""Submits and commands on their way, the SDK that sends them, and what becomes of a job."""
