"""
Traces through all services in one process on virtual time: submitted, admitted, ordered, placed, bound, running, ended.

`services` runs the seven services without faults on a simulated cluster and recomputes their ledger at the end;
`following` submits a trace's jobs at their own times and notes the outcome of each. `pack`, `queue` and `churn` share
both.
"""
