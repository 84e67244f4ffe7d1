"""
Pods that users made and that name our scheduler: found, submitted as jobs, claimed for runs, and shown why they wait.

`handlers` looks at one group at a time; `reporting`, `submitting` and `podless` act on it. Pure: `decide.spec`
(with `ranks`, `roles`, `amounts`) says what job a group amounts to, `from_template` the same of an owner without pods,
`verdicts` what is written on them. Kinds of workloads are `tessera.binder.workloads`.
"""
