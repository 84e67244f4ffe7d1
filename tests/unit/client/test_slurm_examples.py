"""The scripts in docs/examples/slurm: each is read as users get it (a node is a pod), admitted, and runs to its end."""

import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tessera.client.input import files
from tessera.client.sending.submitting import command_bytes
from tessera.client.slurm.scripts.against import Against
from tessera.client.slurm.scripts.jobs import job_of, needs_steps
from tessera.client.slurm.scripts.layout import NodeSize
from tessera.client.slurm.scripts.options import split_words
from tessera.client.slurm.scripts.script import Script, read_script
from tessera.client.slurm.values import Said, dependencies_of
from tessera_schemas.base import job_id
from tessera_schemas.commands import SubmitJob
from tessera_schemas.facts import RunEnded
from tessera_schemas.text.reading import read_tenant_command
from tests.builders import SHARD, admitted, node_seen, run_absent
from tests.rounds import Rounds

FOLDER = Path(__file__).parents[3] / "docs" / "examples" / "slurm"
PAGE = (FOLDER.parents[1] / "slurm.md").read_text()
SCRIPTS = sorted(path for path in FOLDER.iterdir() if "tessera sbatch" not in path.read_text())
DRIVERS = sorted(path for path in FOLDER.iterdir() if "tessera sbatch" in path.read_text())
NOW = datetime(2030, 1, 1, tzinfo=UTC)
NODE = NodeSize(512_000, 2**42, 8)


def shard() -> Rounds:
    labels = {"fast-disk": "", "kubernetes.io/hostname": "gpu-9"}
    return Rounds(
        nodes=[node_seen("gpu-9", NODE.gpus, cpu_milli=NODE.cpu_milli, memory_bytes=NODE.memory_bytes, labels=labels)]
    )


def submit(rounds: Rounds, script: Script, key: str, after: list[dict[str, Any]] | None = None) -> str:
    against, rooms = Against(script), [NODE] if needs_steps(script) else None
    spec = files.job_spec(job_of(script, "train:1", {}, NOW, against, rooms), script.where)
    assert against.error is None
    spec |= {"queue": "research", "priority_class": "normal"} | ({"after": after} if after else {})
    read = read_tenant_command(command_bytes({"kind": "submit_job", "spec": spec}, key, "lab"))
    assert isinstance(read.command, SubmitJob), read.reasons
    rounds.commit(admitted(key, read.command.spec))
    return job_id(SHARD, "lab", key)


def finish_all(rounds: Rounds) -> None:
    """Lets all that runs succeed, again and again, until nothing runs."""
    while runs := [run.run_id for run in rounds.state.runs.values()]:
        for run in runs:
            rounds.commit(RunEnded(kind="run_ended", run_id=run))
            rounds.commit(run_absent(run))
        rounds.settle()


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_an_example_script_runs_to_its_end(path: Path) -> None:
    rounds = shard()
    job = submit(rounds, read_script(path.read_text(), path.name), "k")
    if rounds.state.jobs.get(job).not_before:
        rounds.commit(ms=rounds.state.jobs.get(job).not_before - rounds.ts)
    rounds.settle()
    finish_all(rounds)
    assert rounds.state.ended.get(job).phase == "succeeded"


@pytest.mark.parametrize("path", DRIVERS, ids=lambda path: path.name)
def test_an_example_that_submits_others_runs_to_its_end(path: Path, tmp_path: Path) -> None:
    """The driver runs in its own shell; `tessera` notes what it was asked and answers with the next number as an id."""
    tool, asked = tmp_path / "tessera", tmp_path / "asked"
    note = r'printf "%s\0" "$@" >> "$asked"; printf "\n" >> "$asked"; wc -l < "$asked"'
    tool.write_text(f"#!/bin/bash\nasked={asked}\n{note}\n")
    tool.chmod(0o755)
    subprocess.run(["bash", str(path)], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, check=True, cwd=FOLDER)
    rounds, ids = shard(), list[str]()
    for number, line in enumerate(asked.read_text().splitlines()):
        command, *words = line.removesuffix("\0").split("\0")
        assert command == "sbatch"
        said, rest = split_words(words)
        text = (FOLDER / rest[0]).read_text() if rest else f"#!/bin/sh\n{dict(said)['wrap']}\n"
        script = read_script(text, rest[0] if rest else "wrap", (), said)
        waits = script.options.get("dependency")
        named = dependencies_of(Said(script.where, "dependency", waits)) if waits else []
        after = [{"condition": condition, "job": ids[int(job) - 1]} for condition, job in named]
        ids.append(submit(rounds, script, f"k{number}", after))
    rounds.settle()
    finish_all(rounds)
    ends = [rounds.state.ended.get(job).phase.value for job in ids]
    assert ends == ["succeeded"] * 3 + ["cancelled"] * (path.name == "chain.sh")


def test_every_example_stands_on_the_page() -> None:
    assert set(re.findall(r"examples/slurm/([\w.-]+)\)", PAGE)) == {path.name for path in FOLDER.iterdir()}
