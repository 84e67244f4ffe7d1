"""
Pods that users made and that name our scheduler: found, submitted as jobs, claimed for runs, told why they wait.

Pure: `groups` and `sizes` say which pods are one, `spec` (with `ranks`, `roles`, `amounts`, `survival`) what job they
amount to, `from_template` the same of a Job without pods, `verdicts` what is written on them.
"""
