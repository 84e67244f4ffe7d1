"""Input of users, in files and from programs, read as the contract wants it."""
