"""
The notifier: delivers public events to the webhooks that tenants' configuration declares.

In: `events.<shard>.<tenant>.>` by one durable consumer per webhook, the configuration in Redis, secrets as files of its
own. Out: signed POST requests, and what could not be delivered as dead letters. Guarantee: an event that a webhook asks
for is delivered at least once or is a dead letter; nothing is sent unsigned, nor to an address that the operator has
not allowed; a receiver that is slow or away slows no other. When it is down, events wait in their stream.
"""
