"""The commands of `tessera`, one file per group; what they do is elsewhere, here they read options and print."""
