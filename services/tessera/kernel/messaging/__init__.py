"""Loops over streams: ordered reading, work queues, requests with an answer, facts, dead letters."""
