"""Short scripts, each with one trait of those that people write: a real Slurm and ours do the same with them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.beside_slurm.cluster import Slurm, missing, real_slurm
from tests.beside_slurm.sides import by_slurm, by_us, differences, without
from tests.steps.pods import build, go

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.sh"))
SIDE_BY_SIDE = {"background.sh": ("SLURM_STEP_ID", "SLURMD_NODENAME")}
"""Variables that go by who came first."""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    if why := missing():
        pytest.skip(why)
    with real_slurm(tmp_path_factory.mktemp("slurm")) as running:
        yield running


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not go():
        pytest.skip("there is no go, which builds the program of steps")
    return build(tmp_path_factory.mktemp("steps"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_both_do_the_same(script: Path, slurm: Slurm, program: Path, tmp_path: Path) -> None:
    sides = by_slurm(slurm, script, tmp_path / "slurm"), by_us(program, script, tmp_path / "ours")
    theirs, ours = (without(side, *SIDE_BY_SIDE.get(script.name, ())) for side in sides)
    assert theirs.calls, f"the real Slurm ran nothing: {theirs.refused}"
    if found := differences(theirs, ours):
        pytest.fail("\n".join(found), pytrace=False)
