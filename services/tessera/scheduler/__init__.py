"""
Scheduler: the committer of its shard. It alone writes the ledger.

In: facts (`fact.<shard>.>`), orders (`order.<shard>.<pool>`). Out: `ledger.<shard>`.
Guarantee: every decision follows from the state before it and the inputs written beside it, and stands whole in one
message; two committers can never both write, since each append is a compare-and-swap and an epoch evicts the older.
When it is down nothing new starts or is released; whatever runs goes on. A standby takes over.
"""
