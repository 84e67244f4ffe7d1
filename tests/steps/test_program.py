"""The program's own tests, and what its page says of it."""

import subprocess
from pathlib import Path

from tests.steps.pods import ROOT


def test_the_tests_in_go_pass(program: Path):
    command = ["go", "test", "-count=1", "-timeout=600s", "./..."]
    done = subprocess.run(command, cwd=ROOT / "services/tessera_steps", capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


def test_the_page_has_the_options_of_the_program(program: Path):
    table = subprocess.run([program, "options"], capture_output=True, text=True, check=True).stdout
    assert table in (ROOT / "docs/steps.md").read_text()


def test_the_program_needs_nothing_of_an_image(program: Path):
    assert b"ld-linux" not in program.read_bytes()  # no loader, so no libraries
    assert program.stat().st_size < 10_000_000
