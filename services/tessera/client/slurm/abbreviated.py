"""Options by unique beginnings of their names, as Slurm's own commands take them."""

from collections.abc import Collection


def whole_name(name: str, known: Collection[str]) -> str:
    """The one known name that begins so; the name itself where none does, or several do."""
    found = [each for each in known if each.startswith(name)]
    return found[0] if name not in known and len(found) == 1 else name
