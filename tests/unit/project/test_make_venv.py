"""`make setup` takes an interpreter that was built with profile-guided optimisation, where there is one."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy import make_venv

FILE = Path(make_venv.__file__)
PGO, PLAIN = "'--enable-optimizations' '--with-lto'", "'--prefix=/opt/plain'"


def made(folder: Path, name: str, version: str = "3.12.1", prefix: str = "/opt", options: str | None = PLAIN) -> str:
    """An interpreter that says this of itself; it is called what it is called, wherever it is found."""
    folder.mkdir(exist_ok=True)
    program = folder / name
    said = json.dumps([str(program), [int(part) for part in version.split(".")], prefix, options])
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{said}\nEND\n")
    program.chmod(0o755)
    return str(program)


def broken(folder: Path, name: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("#!/bin/sh\necho 'No module named ensurepip' >&2\nexit 1\n")
    (folder / name).chmod(0o755)


def chosen(*folders: Path, given: str = "") -> str:
    found = make_venv.choose(os.pathsep.join(map(str, folders)), given)
    return "" if found is None else found.program


def test_an_interpreter_below_usr_is_a_distributions_and_comes_before_a_plain_one(tmp_path: Path) -> None:
    first, second = tmp_path / "shims", tmp_path / "usr"
    made(first, "python3")
    fast = made(second, "python3.11", "3.11.2", prefix="/usr", options=None)
    assert chosen(first, second) == fast


def test_one_that_says_that_it_was_built_so_comes_before_a_plain_one(tmp_path: Path) -> None:
    made(tmp_path, "python3")
    fast = made(tmp_path, "python3.13", "3.13.0", options=PGO)
    assert chosen(tmp_path) == fast


def test_the_first_on_the_path_is_taken_where_several_are_fast(tmp_path: Path) -> None:
    fast = made(tmp_path / "a", "python3", options=PGO)
    made(tmp_path / "b", "python3", options=PGO)
    made(tmp_path / "b", "python3.14", "3.14.0", options=PGO)
    assert chosen(tmp_path / "a", tmp_path / "b") == fast


def test_one_that_is_too_old_or_cannot_make_an_environment_is_passed_over(tmp_path: Path) -> None:
    made(tmp_path, "python3", "3.9.18", prefix="/usr")
    broken(tmp_path, "python3.11")
    fast = made(tmp_path, "python3.12", options=PGO)
    assert chosen(tmp_path) == fast


def test_without_a_fast_one_the_first_that_serves_is_taken(tmp_path: Path) -> None:
    broken(tmp_path / "a", "python3")
    slow = made(tmp_path / "b", "python3")
    made(tmp_path / "b", "python3.12")
    assert chosen(tmp_path / "a", tmp_path / "b") == slow


def test_the_one_that_the_user_names_wins(tmp_path: Path) -> None:
    made(tmp_path, "python3", options=PGO)
    named = made(tmp_path / "own", "python3.11", "3.11.7")
    assert chosen(tmp_path, given=named) == named


def test_a_real_interpreter_is_found_under_its_own_name_and_not_its_environments() -> None:
    found = make_venv.probe(sys.executable)
    assert found is not None
    assert found.version == "{}.{}.{}".format(*sys.version_info)
    assert Path(found.program).resolve() == Path(sys.executable).resolve()
    assert not found.program.startswith(sys.prefix + os.sep)


@pytest.mark.parametrize("words", [["nobody"], []])
def test_where_none_serves_it_is_said_what_is_needed(words: list[str], tmp_path: Path) -> None:
    command = [sys.executable, str(FILE), str(tmp_path / "venv"), *words]
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": str(tmp_path)}, check=False)
    assert done.returncode == 1
    assert "Python 3.11 or later" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_an_environment_of_another_interpreter_is_made_anew(tmp_path: Path) -> None:
    """Else its `python` stays the old one, and takes the standard library of the new one."""
    environment, asked = tmp_path / "venv", tmp_path / "asked"
    program = Path(made(tmp_path, "python3", options=PGO))
    program.write_text(program.read_text() + f'echo "$@" >> {asked}\n')
    for link in (sys.executable, program):
        (environment / "bin").mkdir(parents=True, exist_ok=True)
        (environment / "bin" / "python").unlink(missing_ok=True)
        (environment / "bin" / "python").symlink_to(link)
        command = [sys.executable, str(FILE), str(environment), str(program)]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert f"with {program} (3.12.1), built with profile-guided optimisation" in said
    asked_for = [line for line in asked.read_text().splitlines() if line.startswith("-m venv")]
    assert asked_for == [f"-m venv --clear {environment}", f"-m venv {environment}"]


def test_it_reads_as_python_3_6() -> None:
    """Whatever `python3` is, it has to run this to find a better one."""
    ast.parse(FILE.read_text(), feature_version=(3, 6))
