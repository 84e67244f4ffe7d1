"""`python -m tests.bad_input`: many cases of everything, and a table; 1 when one led to what may not be."""

import argparse
import asyncio
import resource
import sys
import tempfile
from pathlib import Path
from random import Random

from tests.bad_input.corpora import JSON_TEXTS
from tests.bad_input.described import try_described
from tests.bad_input.over_http import try_all
from tests.bad_input.trials import (
    READERS,
    Tally,
    good_policy,
    lines,
    naughty_commands,
    try_command,
    try_commands,
    try_decoders,
)
from tests.builders import admitted
from tests.unit.gateway.gateway_world import a_world


async def run(cases: int, requests: int, flips: float, seed: int) -> list[str]:
    """Everything, a row at a time; returns what went wrong."""
    policy, wrong = await good_policy(), list[str]()
    for kind in READERS:
        tally = Tally()
        try_commands(kind, cases, Random(seed), policy, tally)
        for data in (*naughty_commands(kind), *JSON_TEXTS):
            try_command(kind, data, policy, tally)
        wrong += tally.wrong
        print(lines(kind, tally), flush=True)
    tally = Tally()
    try_decoders(flips, Random(seed), tally)
    wrong += tally.wrong
    print(lines("byte flips", tally), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        gateway = await a_world(Path(folder))
        await gateway.commit(admitted("k1"))
        job = admitted("k1").job_id
        for tallies in (
            await try_all(gateway, requests, Random(seed), job),
            await try_described(gateway, requests, seed, job),
        ):
            for name, tally in tallies.items():
                wrong += tally.wrong
                print(lines(name, tally), flush=True)
    return wrong


def main() -> int:
    """Exit code 0 when every case led to a good value or a typed refusal."""
    parser = argparse.ArgumentParser(prog="tests.bad_input")
    parser.add_argument("--cases", type=int, default=100_000, help="generated, for each command")
    parser.add_argument(
        "--requests",
        type=int,
        default=1_000,
        help="for each operation of the HTTP API, and as many from its description",
    )
    parser.add_argument("--flips", type=float, default=10.0, help="for each byte of the golden corpus")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    wrong = asyncio.run(run(chosen.cases, chosen.requests, chosen.flips, chosen.seed))
    print(f"{len(wrong)} wrong; largest memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB")
    for sentence in wrong[:50]:
        print(sentence[:1000], file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
