"""Objects that own users' pods: read, watched, told."""
