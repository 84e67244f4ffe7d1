"""Pure words: resources, jobs, phases, the queue tree, the state of a shard and the fold that moves it."""
