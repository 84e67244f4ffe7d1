"""
Pods that users made and that name our scheduler: found, submitted as jobs, claimed for runs, told why they wait.

`handlers` looks at one group at a time; `telling`, `submitting` and `podless` are what comes of it. Pure: `decide.spec`
(with `ranks`, `roles`, `amounts`) says what job a group amounts to, `from_template` the same of an owner without pods,
`verdicts` what is written on them. Kinds of workloads are `tessera.binder.workloads`.
"""
