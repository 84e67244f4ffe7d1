"""A mutant as its patch file describes it: what it breaks, the tests that must notice, and the patch itself."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
KILLERS = "killed by: "


@dataclass(frozen=True, slots=True)
class Mutant:
    """`killers` are pytest's words for the tests of which one at least must fail."""

    name: str
    breaks: str
    killers: tuple[str, ...]
    patch: Path

    @classmethod
    def read(cls, patch: Path) -> "Mutant":
        breaks, killers, *_ = patch.read_text().splitlines()
        if not killers.startswith(KILLERS):
            raise ValueError(f"{patch}: its second line does not begin with {KILLERS!r}")
        return cls(patch.stem, breaks, tuple(killers.removeprefix(KILLERS).split()), patch)

    def apply(self, tree: Path, *how: str) -> str:
        """Apply it in a tree of the sources, as `how` says to git; returns the objections, "" for none."""
        done = subprocess.run(
            ["git", "apply", "-C1", *how, str(self.patch)], cwd=tree, capture_output=True, text=True, check=False
        )
        return done.stderr.strip()


def mutants() -> list[Mutant]:
    """Every mutant, by name."""
    return [Mutant.read(patch) for patch in sorted(HERE.glob("*.patch"))]
