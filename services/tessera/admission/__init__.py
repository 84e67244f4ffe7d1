"""
Admission: decides whether a command is taken in, and says all reasons when it is not.

In: `submit.<shard>.<tenant>` (jobs, cancels), `submit.<shard>.<tenant>.kubernetes` (what the binder adopts),
`control.<shard>` (configuration, operators' cancels) and `control.<shard>.health` (reports of nodes' health and nothing
else), as work queues; tenant policy and node shapes from the shared views. Out: `fact.<shard>.admission.<kind>` (job
admitted or refused, cancel requested, configuration proposed) and an answer to the client's private inbox.

Guarantee: every command that was acknowledged to its sender leads to a fact or, beyond the refusals that are recorded
one by one, to a count in one. Bad input never raises and has no other effect. The tenant is the subject's. Replicas
share the queues; a command handled twice gives the same fact twice, which the committer takes in once. When it is
down, commands wait in their queue and everything else goes on.
"""
