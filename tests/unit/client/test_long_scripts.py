"""A script that no one argument holds runs as it is written, and a short one is handed over as ever."""

import subprocess
from collections.abc import Sequence

import pytest

from tessera.client.slurm.scripts import pods
from tests.kubelet import expanded
from tests.unit.client.slurm_builders import pod_of, read_script, spec_of

SHOWS = """\
echo "$0|$#|$*|${1-}"
count() { echo "$# in a function"; }
count "$@"
cat <<HERE
$HOME $(echo of a command) \\$5
HERE
(exit 3) || echo "code $?"
trap 'echo at the end' EXIT
"""
ODD = "# $(a) $$ $'b' é \U0001f525 `c` \\ ${d\n"
LAST = "set | grep '^tessera_' || exit 7\n"
IN_PYTHON = "import sys\nprint(__name__, sys.argv, sorted(n for n in globals() if n[0] != '_'))\nsys.exit(7)\n"


def padded(first: str, body: str, last: str, size: int) -> str:
    """A script of so many bytes."""
    text = f"{first}\n{body}"
    text += ODD * ((size - len((text + last).encode())) // len(ODD.encode()) - 1)
    text += "#" + "x" * (size - len((text + last).encode()) - 2) + "\n" + last
    assert len(text.encode()) == size
    return text


def run(words: Sequence[str]) -> tuple[int, str, str]:
    done = subprocess.run(words, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", "HOME": "/home/a"})
    return done.returncode, done.stdout, done.stderr


def in_pod(text: str, *arguments: str) -> tuple[int, str, str]:
    command = pods.command_of(text, "train.sh", arguments)
    assert command.mistakes == ()
    return run([expanded(word, {}) for word in command.words])


SHELLS = [("#!/bin/bash", ["/bin/bash"]), ("#!/bin/bash -eu", ["/bin/bash", "-eu"]), ("#!/bin/sh", ["/bin/sh"])]


@pytest.mark.parametrize(("first", "shell"), SHELLS, ids=[first for first, _ in SHELLS])
@pytest.mark.parametrize("arguments", [(), ("a b", "", "*")], ids=["alone", "with arguments"])
def test_a_long_script_does_in_a_pod_what_it_would_do_as_one_argument(
    first: str, shell: list[str], arguments: tuple[str, ...]
) -> None:
    text = padded(first, SHOWS, LAST, 100_000)
    assert pods.is_long(text)
    assert in_pod(text, *arguments) == run([*shell, "-c", text, "./train.sh", *arguments])


@pytest.mark.parametrize("arguments", [(), ("a b", "")], ids=["alone", "with arguments"])
def test_a_long_script_in_python_sees_its_own_arguments_and_names_alone(arguments: tuple[str, ...]) -> None:
    text = padded("#!/usr/bin/env python3", IN_PYTHON, "", 100_000)
    assert in_pod(text, *arguments) == run(["python3", "-c", text, *arguments])


@pytest.mark.parametrize("first", ["#!/bin/bash", "#!/bin/sh", "#!/usr/bin/env python3"])
def test_the_longest_script_is_taken_in_and_runs_and_a_byte_more_is_refused_with_the_way_out(first: str) -> None:
    body, last = (IN_PYTHON, "") if "python" in first else (SHOWS, LAST)
    longest = padded(first, body, last, pods.SCRIPT_BYTES_MAX)
    code, out, errors = in_pod(longest)
    assert (code, errors) == (7, "")
    assert out == in_pod(padded(first, body, last, 20_000))[1]
    (mistake,) = pods.command_of(f"{longest}\n", "train.sh").mistakes
    assert mistake == (
        "train.sh: 262145 bytes; a script has at most 262144: put the program into the image or a volume, and call it "
        "from a short script"
    )


def test_steps_signals_and_variables_of_a_long_script_are_those_of_a_short_one() -> None:
    options = "#SBATCH --signal=USR1@60\n#SBATCH --ntasks=2\n"
    body = f'{options}echo "$SLURM_PROCID"\nsrun -n1 echo one\nscontrol show hostnames | head -n 1\n'
    short, long = f"#!/bin/bash\n{body}", padded("#!/bin/bash", body, "", 200_000)
    for rank in (0, 1):
        ran = [run_pod_of(text, rank) for text in (short, long)]
        assert ran[0] == ran[1]


def run_pod_of(text: str, rank: int) -> str:
    command, env = pod_of(spec_of(read_script(text, "train.sh")), rank)
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout


def test_a_script_that_one_argument_holds_is_that_argument() -> None:
    text = "#!/bin/bash\n" + "x" * (32_768 - 12)
    assert pods.command_of(text, "train.sh", ("a",)).words == ["/bin/bash", "-c", text, "train.sh", "a"]
    longer = pods.command_of(f"{text}\n", "train.sh", ("a",)).words
    assert longer[:2] == ["/bin/bash", "-c"]
    assert longer[3:] == ["train.sh", text[:16_384], text[16_384:], "\n", "a"]


def test_no_piece_is_longer_than_the_contract_and_linux_take_whatever_is_written() -> None:
    for letter, times in (("$", 200_000), ("\U0001f525", 32_000), ("$(", 30_000), ("é$", 30_000)):
        words = pods.command_of("#!/bin/sh\n" + letter * times, "train.sh").words
        assert max(map(len, words)) <= 32_768
        assert max(len(word.encode()) for word in words) < 128 * 1024
