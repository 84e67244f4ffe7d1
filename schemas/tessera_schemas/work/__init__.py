"""Parts of a job and its run: arrays, templates, pods, placements, ends."""
