"""`python -m tests.chaos`: real processes under load and faults, for so many minutes; 1 when something broke."""

import argparse
import asyncio
import logging
import secrets
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random

import structlog

from tests.chaos.campaign import Account, Broken, on_one_server, on_three_servers
from tests.e2e.live import LAYOUT

PHASES = ("services", "servers", "cluster", "accidents", "clocks", "stale", "all kinds", "three")
THREE_SHARE = 0.15  # of the minutes, on three servers


async def campaign(directory: Path, seconds: float, chance: Random, account: Account, phases: Sequence[str]) -> None:
    """Both platforms, one after the other, or the phases that are named. Raises Broken."""
    three = THREE_SHARE if not phases else float("three" in phases) / len(phases)
    if three < 1:
        await on_one_server(directory, seconds * (1 - three), chance, account, phases)
    if three > 0:
        await on_three_servers(directory, seconds * three, chance, account)


def main() -> int:
    """Exit code 0 when all is well after each phase; what broke is said, and its directory is kept."""
    parser = argparse.ArgumentParser(prog="tests.chaos", description="A campaign of faults on real processes.")
    parser.add_argument("--minutes", type=float, default=15.0, help="of faults; starting and judging come on top")
    parser.add_argument("--seed", type=int, default=None, help="of what is drawn; timing stays the machine's")
    parser.add_argument("--phase", choices=PHASES, action="append", default=[], help="this one; may be said again")
    chosen = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    seed = secrets.randbelow(10**6) if chosen.seed is None else chosen.seed
    print(f"seed {seed}, {chosen.minutes:g} minutes of faults, {LAYOUT} services; again: --seed {seed}", flush=True)
    directory, account, broken = Path(tempfile.mkdtemp(prefix="tessera-chaos-")), Account(), ""
    try:
        asyncio.run(campaign(directory, chosen.minutes * 60, Random(seed), account, chosen.phase))
    except Broken as error:
        broken = str(error)
    print(f"faults: {', '.join(f'{count} {name}' for name, count in sorted(account.faults.items()))}")
    print(
        f"acknowledged {account.acknowledged}, ended exactly once {account.ended}; ledger messages {account.messages}"
    )
    print(f"examined: {', '.join(f'{kind} {count}' for kind, count in sorted(account.examined.items()))}")
    if account.ends_by_themselves:
        print(f"processes that ended unasked: {dict(account.ends_by_themselves)}")
    if broken:
        print(f"BROKEN (seed {seed}): {broken}\nkept: {directory}", file=sys.stderr)
        return 1
    shutil.rmtree(directory)
    print("all is well")
    return 0


if __name__ == "__main__":
    sys.exit(main())
