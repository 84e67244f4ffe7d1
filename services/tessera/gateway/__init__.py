"""
The gateway: HTTP for those who do not speak NATS; it decides nothing.

In: requests with a bearer token, the ledger, Redis, `events.<shard>.>`. Out: answers, server-sent events, and commands
on `submit.<shard>.<tenant>`, for the tenant of the token and no other, and on `control.<shard>.health`, what agents
report of nodes. Guarantee: a request acts and sees as its tenant alone; every "no" is a typed body; what it answered
2xx to a submit is stored. When it is down, clients on NATS and everything that was submitted go on.
"""
