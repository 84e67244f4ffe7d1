"""
Preemption: finds room for jobs that wait behind others of a lower class.

In: the ledger. Out: facts `plan_proposed` of cause preemption on `fact.<shard>.preemption.plan-proposed`: whom to evict
or shrink, and where the job goes then.
Guarantee: a plan is a pure function of a state of the ledger, it carries the placement that proves it, and names nobody
who is not needed for it. The committer decides. When it is down nobody is evicted for a waiting job and elastic runs
keep their size; everything else goes on.
"""
