"""Who is next and when: queue order, backfill, reservations, expected durations, readiness."""
