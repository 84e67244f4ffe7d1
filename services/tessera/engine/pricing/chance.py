"""Numbers that look drawn by chance, as a function of three others: decisions must come out the same everywhere."""

from tessera.engine.pricing.compiled import compiled_lean


@compiled_lean
def mixed(a: int, b: int, c: int) -> int:
    """A number below 2^31 that looks drawn by chance; equal inputs give equal numbers."""
    x = (a * 1103515245 + b * 12345 + c * 2654435761) & 0x7FFFFFFF
    for _ in range(4):
        x = ((x ^ (x >> 15)) * 1103515245 + 12345) & 0x7FFFFFFF
    return x ^ (x >> 15)
