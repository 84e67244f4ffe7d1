"""The table of nodes and kinds of pods: what is free, how many fit, and what a gang lacks."""
