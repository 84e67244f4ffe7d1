"""
Traces through all services in one process on virtual time: submitted, admitted, ordered, placed, bound, running, ended.

`crew` is the seven services without faults on a simulated cluster, with their ledger recomputed at the end; `following`
submits a trace's jobs at their own times and writes down what became of each. `pack`, `queue` and `churn` share both.
"""
