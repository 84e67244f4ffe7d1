"""Errors of the fold: a record contradicts the state. The kernel turns them into a halt of the shard."""


class Contradiction(Exception):
    """A record that no correct committer could have written."""


class IllegalMove(Contradiction):
    """A job's phase changed in a way that the phase table does not list."""


class UnknownFormat(Contradiction):
    """The ledger uses a record format that this build does not know."""
