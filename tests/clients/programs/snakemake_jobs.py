"""snakemake: a workflow whose job ends, and one that is interrupted while its job waits."""

import atexit
import re
import signal
import subprocess
import sys
from pathlib import Path

from waiting import SECONDS, tell, until

SUBMITTED = re.compile(r"submitted with SLURM jobid (\d+)")


def start(rule: str) -> subprocess.Popen[bytes]:
    Path("Snakefile").write_text(f'rule all:\n    resources: {rule}\n    shell: "true"\n')
    words = [Path(sys.executable).parent / "snakemake", "--executor", "slurm", "--jobs", "1"]
    words += ["--slurm-init-seconds-before-status-checks", "1"]
    with Path("log").open("wb") as log:
        started = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    atexit.register(started.kill)
    return started


def number() -> str:
    found = SUBMITTED.search(Path("log").read_text())
    return found[1] if found else ""


workflow = start('slurm_partition="default", slurm_account="lab", runtime=5, mem_mb=100')
assert workflow.wait(SECONDS) == 0, Path("log").read_text()
ended = number()
workflow = start('slurm_partition="default", runtime=5, slurm_extra="\'--begin=now+1hours\'"')
cancelled = until(number, "snakemake submits")
workflow.send_signal(signal.SIGINT)
workflow.wait(SECONDS)
tell(ended, cancelled)
