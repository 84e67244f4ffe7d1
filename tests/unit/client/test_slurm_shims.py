"""`slurm-shims`: Slurm's commands as programs; and what `sbatch` takes and says for those who call them."""

import os
import subprocess
from pathlib import Path

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from tessera.client.cli import app
from tessera.client.commands.slurm_words.shims import COMMANDS
from tessera.client.slurm.abbreviated import whole_words
from tessera.client.slurm.scripts.options import split_words
from tests.unit.client.slurm_builders import job, read, wrong


def test_each_command_is_a_program_that_calls_tessera_with_the_words_it_got(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["slurm-shims", str(tmp_path / "bin"), "--as", "lab"])
    assert (done.exit_code, done.output) == (0, f'export PATH="{tmp_path / "bin"}:$PATH"\n')
    assert sorted(os.listdir(tmp_path / "bin")) == sorted(COMMANDS)
    (tmp_path / "json.py").write_text("raise SystemExit('of another program')")  # as users' directories have them
    asked = subprocess.run(
        [tmp_path / "bin" / "scontrol", "show", "hostnames", "gpu-[1-2]"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (asked.returncode, asked.stdout, asked.stderr) == (0, "gpu-1\ngpu-2\n", "")
    assert "sbatch --as lab --ignore notes " in (tmp_path / "bin" / "sbatch").read_text()
    assert "--as" not in (tmp_path / "bin" / "squeue").read_text(), "who submits may not read what the views hold"
    assert CliRunner().invoke(app, ["slurm-shims", str(tmp_path / "bin")]).exit_code == 0, "they are written anew"


def test_programs_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "squeue").write_text("#!/bin/sh\n")
    done = CliRunner().invoke(app, ["slurm-shims", str(tmp_path)])
    assert (done.exit_code, "squeue is there already" in done.output) == (4, True)
    assert os.listdir(tmp_path) == ["squeue"]


def test_options_may_be_cut_short_as_long_as_one_is_meant() -> None:
    assert split_words(["--job-n=a", "--tasks-per-node", "2", "--cpus-per-t=3", "x"]) == (
        [("job-name", "a"), ("ntasks-per-node", "2"), ("cpus-per-task", "3")],
        ["x"],
    )
    assert split_words(["--par=busy"])[0] == [("par", "busy")]  # --parsable, --partition
    known = {"--jobs", "--states", "--start"}
    assert whole_words(["--jo", "1", "--sta=R", "--stat=R", "--", "--jo"], known) == [
        *("--jobs", "1", "--sta=R", "--states=R", "--", "--jo")
    ]


@pytest.mark.parametrize(
    "options",
    ["--get-user-env --wckey=submitit --open-mode=append --comment x", "-e /dev/null -o x_%J.out --export=ALL -v"],
)
def test_what_libraries_write_into_every_script_is_taken(options: str) -> None:
    assert job(*options.split(" ", 0)).roles[0].replicas == 1


def test_a_wckey_is_the_project() -> None:
    assert job("--wckey=vlm").project == "vlm"
    assert job().project == ""
    with pytest.raises(ValidationError, match="project"):
        job("--wckey=a/b")


def test_cpus_are_said_by_gpu_too() -> None:
    assert job("--gpus=2", "--cpus-per-gpu=4").roles[0].resources.cpu_milli == 8000
    assert "it has no GPU" in wrong("--cpus-per-gpu=4")
    assert "say one of them" in wrong("--gpus=1", "--cpus-per-gpu=4", "-c 2")


def test_one_of_several_values_of_a_label_is_enough() -> None:
    (term,) = job("--constraint=zone=a|zone=b").roles[0].affinity
    assert (term.key, term.values) == ("zone", ("a", "b"))
    assert "zone=a|zone=b" in wrong("--constraint=a|b")


def test_the_variables_of_the_shell_do_not_go_into_pods_and_a_note_says_so() -> None:
    assert "TOKEN" not in job("--export=ALL").roles[0].template.env
    assert job("--export=ALL,MODE=fast").roles[0].template.env["MODE"] == "fast"
    assert read("--comment=x").notes[0].startswith("train.sh:2: --comment is passed over")
