"""Tools of asyncio with a bounded end: task groups, waits, deadlines, jitter, work by key."""
