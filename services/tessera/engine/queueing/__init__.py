"""Queue order, backfill, reservations, expected durations, readiness."""
