"""
`python -m tests.nightly`: all that explores, each part with a log, and one report; 1 when a part failed.

What a change must pass is the same in each run (`.ci/run`); here seeds, examples and faults are new ones each night. A
seed that fails here becomes one of `tests/simulation/test_seeds.py`, once its cause is mended.
"""

import argparse
import os
import secrets
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from tessera.kernel.clock import SystemClock
from tessera_schemas.shard.services import COMPACT, LAYOUTS, SEPARATE

ROOT = Path(__file__).parents[2]
REPORT = ROOT / "build" / "nightly"
SHOWN_LINES = 12
FIRST_MAX = 1 << 28
BUILT_AT_NIGHT = (
    "test_composite_groups",
    "test_keda",
    "test_leader_worker_sets",
    "test_mpi_jobs",
    "test_ray_clusters",
    "test_ray_jobs",
    "test_train_jobs",
)


@dataclass(frozen=True, slots=True)
class Part:
    """What is run for one question: the words after the interpreter, and what its environment has besides."""

    name: str
    asks: str
    words: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a part ended, in seconds, with the last lines that it printed."""

    part: Part
    code: int
    seconds: float
    tail: tuple[str, ...]

    def row(self) -> str:
        """One row of the report."""
        verdict = "well" if self.code == 0 else f"**failed** ({self.code})"
        last = self.tail[-1].replace("|", "\\|") if self.tail else ""
        return f"| {self.part.name} | {verdict} | {self.seconds / 60:.1f} | {last} | `{self.part.name}.log` |"


def parts(minutes: float, seed: int) -> list[Part]:
    """Every part; those that may go on for ever get `minutes` each, and draw from `seed`."""
    pytest, time = ("-m", "pytest", "-q"), ("--minutes", f"{minutes:g}")
    return [
        Part(
            "seeds",
            "does any simulated world break a promise",
            ("-m", "tessera.testkit.sim", "--seeds", "100000", "--first", str(seed), *time),
        ),
        Part("coverage", "do hundred seeds reach every fault", ("-m", "tessera.testkit.sim", "--seeds", "300")),
        Part(
            "properties",
            "do examples that nobody drew yet hold",
            (*pytest, "-n", "auto", "tests/property"),
            {"HYPOTHESIS_PROFILE": "explore"},
        ),
        Part(
            "long",
            "do the tests hold that take too long for each change",
            (*pytest, "-rs", "-n", "2", "-m", "nightly", "tests"),
            {"EVERY_TEST": "1"},
        ),
        Part(
            "chaos",
            "do real processes survive, in the layout that the seed draws",
            ("-m", "tests.chaos", *time, "--seed", str(seed)),
            {"TEST_LAYOUT": sorted(LAYOUTS)[seed % len(LAYOUTS)]},
        ),
        *(
            Part(
                layout,
                f"do platforms of layout {layout} go through what each change tries on some of either",
                (*pytest, "-n", "4", "tests/e2e"),
                {"TEST_LAYOUT": layout},
            )
            for layout in (COMPACT, SEPARATE)
        ),
        Part("overload", "does a platform bear too much", ("-m", "tests.overload")),
        Part("bad-input", "does spoilt input do harm", ("-m", "tests.bad_input", "--seed", str(seed))),
        Part(
            "damage",
            "do the runbooks mend every damage",
            (*pytest, "-n0", "tests/operations/test_runbooks.py"),
            {"EVERY_TEST": "1"},
        ),
        Part(
            "shares",
            "do the runs of a million starts and ends sum to what the state has",
            (*pytest, "-n0", "tests/unit/client/test_usage_parts.py"),
            {"TESSERA_SHARE_EVENTS": "1000000"},
        ),
        Part("clients", "do libraries that call Slurm's commands work, and Jupyter", ("-m", "tests.clients")),
        Part("slurm", "do scripts mean what a real Slurm makes of them", (*pytest, "-rs", "-n0", "tests/beside_slurm")),
        Part(
            "oracle",
            "is what kube-scheduler places by claims placed here, and nothing illegal",
            ("-m", "tests.kubernetes.oracle", "--worlds", "300", "--first", str(seed)),
        ),
        Part(
            "controllers",
            "do controllers of others that take long to build work beside it",
            (*pytest, "-rs", "-n0", *(f"tests/kubernetes/{name}.py" for name in BUILT_AT_NIGHT)),
            {"TESSERA_BUILD_ALL": "1"},
        ),
        Part(
            "launchers",
            "do torchrun, DeepSpeed, JAX and Ray meet over two hosts",
            (*pytest, "-rs", "-n0", "tests/containers/test_two_hosts.py"),
            {"TESSERA_BUILD_ALL": "1"},
        ),
        Part("mutants", "does a test notice each broken promise", ("-m", "tests.mutants")),
    ]


def run(part: Part, clock: SystemClock) -> Outcome:
    """Run a part to its end; all that it prints goes into its log."""
    log, began = REPORT / f"{part.name}.log", clock.monotonic()
    with log.open("wb") as out:
        words, env = [sys.executable, *part.words], os.environ | dict(part.env)
        code = subprocess.run(words, cwd=ROOT, env=env, stdout=out, stderr=subprocess.STDOUT, check=False).returncode
    printed = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return Outcome(part, code, clock.monotonic() - began, tuple(printed[-SHOWN_LINES:]))


def report(outcomes: list[Outcome], seed: int) -> str:
    """The report as Markdown: a row a part, and how each that failed ended."""
    lines = [f"# Nightly, seed {seed}", "", "| part | verdict | minutes | last line | log |", "|---|---|---|---|---|"]
    lines += [outcome.row() for outcome in outcomes]
    for outcome in outcomes:
        if outcome.code:
            lines += ["", f"## {outcome.part.name}: {outcome.part.asks}?", "", "```", *outcome.tail, "```"]
    return "\n".join((*lines, ""))


def main() -> int:
    """Exit code 1 when a part failed; the others are run all the same."""
    names = [part.name for part in parts(0, 0)]
    parser = argparse.ArgumentParser(prog="python -m tests.nightly", description="All that explores, in one report.")
    parser.add_argument("--minutes", type=float, default=30.0, help="of seeds and of chaos, each (default 30)")
    parser.add_argument("--seed", type=int, default=None, help="what is drawn begins here (default: anywhere)")
    parser.add_argument("part", nargs="*", default="all", choices=["all", *names], help="these alone")
    asked = parser.parse_args()
    seed = secrets.randbelow(FIRST_MAX) if asked.seed is None else asked.seed
    REPORT.mkdir(parents=True, exist_ok=True)
    console, clock, outcomes = Console(highlight=False), SystemClock(), list[Outcome]()
    for part in parts(asked.minutes, seed):
        if "all" in asked.part or part.name in asked.part:
            console.print(f"{part.name}: {part.asks}? …")
            outcomes.append(run(part, clock))
            (REPORT / "report.md").write_text(report(outcomes, seed))
            console.print("  " + ("well" if outcomes[-1].code == 0 else "[red]failed[/]"))
    console.print(report(outcomes, seed), markup=False, soft_wrap=True)
    return 1 if any(outcome.code for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
