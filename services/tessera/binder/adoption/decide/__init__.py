"""Interpretation of users' own pods, without I/O: groups, marks, roles, sizes, and the job that they form."""
