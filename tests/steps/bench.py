"""
`python -m tests.steps.bench`: a step beside its floor, what a runner holds, what the program weighs.

The pods are processes of this machine, on loopback; the script that is measured runs in the first of them.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from tessera_lab.bench.report import ReportRow, percentile
from tests.steps.pods import Pods, build, go, pods_of_a_run, resident_kibibytes

TWICE = "[subprocess.run(['hostname'], stdout=subprocess.DEVNULL, check=True) for _ in range(2)]"
STEP = "subprocess.run(['srun', 'hostname'], stdout=subprocess.DEVNULL, check=True)"
MEASURE = f"""
import json, subprocess, sys, time

def milliseconds(run):
    began = time.perf_counter()
    run()
    return (time.perf_counter() - began) * 1000

pairs = []
for _ in range(int(sys.argv[1])):
    pairs.append((milliseconds(lambda: {TWICE}), milliseconds(lambda: {STEP})))
print(json.dumps(pairs), flush=True)
sys.stdin.read()
"""


def report(rounds: int, samples: int) -> list[ReportRow]:
    """A step over two pods, over 64, the memory of an idle runner, the size of the program."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = build(folder)
        two = [_measured(program, folder, 2, samples) for _ in range(rounds)]
        many = [_measured(program, folder, 64, 3) for _ in range(rounds)]
        size = program.stat().st_size / 1_000_000
    over_two = [_middle(pairs, 1) for pairs, _ in two]
    floors = [_middle(pairs, 0) for pairs, _ in two]
    resident = [kibibytes / 1024 for _, kibibytes in two]
    bare = "fork and exec of it, twice"
    return [
        ReportRow("`srun hostname` over 2 pods", "ms", "<= 50", tuple(over_two), bare, tuple(floors)),
        ReportRow(
            "`srun hostname` over 64 pods of this machine",
            "ms",
            "<= 3,000",
            tuple(_middle(pairs, 1) for pairs, _ in many),
            bare,
            tuple(_middle(pairs, 0) for pairs, _ in many),
        ),
        ReportRow("memory of an idle runner after steps", "MiB", "<= 8", tuple(resident), "one MiB", (1.0,) * rounds),
        ReportRow("the program, which is its image", "MB", "<= 10", (size,), "one MB", (1.0,)),
    ]


def _measured(program: Path, folder: Path, count: int, samples: int) -> tuple[list[list[float]], int]:
    """Pairs of floor and step in milliseconds, and the KiB that the largest runner holds afterwards."""
    (folder / "measure.py").write_text(MEASURE)
    script = f"{sys.executable} measure.py {samples} < <(until [ -e go ]; do sleep 0.05; done)"
    (folder / "go").unlink(missing_ok=True)
    with pods_of_a_run(program, folder, count, script) as run:
        pairs = json.loads(run.pods[0].stdout.readline())
        held = _largest(run)
        (folder / "go").touch()
        run.ended()
    return pairs, held


def _largest(run: Pods) -> int:
    return max(resident_kibibytes(pod.pid) for pod in run.pods)


def _middle(pairs: list[list[float]], which: int) -> float:
    return percentile([pair[which] for pair in pairs], 50)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.steps.bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=30, help="steps of one round")
    asked = parser.parse_args()
    if not go():
        sys.exit("there is no go, which builds the program of steps")
    for row in report(asked.rounds, asked.samples):
        print("\n".join(row.lines()))


if __name__ == "__main__":
    main()
