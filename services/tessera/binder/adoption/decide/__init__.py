"""What users' own pods amount to, without any I/O: groups, marks, roles, sizes, the job that they are."""
