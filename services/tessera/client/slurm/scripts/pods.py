"""
The pod of a script: the script as an argument of its interpreter, or several, and Slurm's variables.

Every pod is one task and a node of its own: it sees its own GPUs alone, so that its local rank is 0. Each pod runs the
whole script; in a shell `srun` is a function that runs its command in the pods of the ranks it asks for.

A script longer than one argument is handed over in several, which its own interpreter puts together as it starts: Linux
takes 128 KiB in one argument of a program, and the contract less; a shell's or Python's own text has no bound. The
script sees the same `$0`, arguments and `sys.argv` as where it is one argument, and no name of ours.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tessera.client.slurm.scripts import srun
from tessera.client.slurm.values import SlurmWarning
from tessera_schemas.work.arrays import task_count, task_ranges
from tessera_schemas.work.pod_template import ARGUMENT_CHARACTERS, literally

ARGUMENT_BYTES = 128 * 1024 - 1
"""Bytes of one argument that Linux hands to a program (MAX_ARG_STRLEN), without the zero that ends it."""
PIECE_CHARACTERS = ARGUMENT_CHARACTERS // 2
"""Written for the kubelet a piece may be twice as long: `$` is `$$`. In UTF-8 it has 64 KiB at most."""

SCRIPT_BYTES_MAX = 256 * 1024
"""Longest script. It goes into the ledger once and into each of its job's pods; Slurm's own bound is 4 MB."""
SHELL = re.compile(r"(?:^|/)(?:ba|da|z|k)?sh$")
PYTHON = re.compile(r"(?:^|/)python[0-9.]*$")
FIRST_LINE = re.compile(r"^#!\s*(?:/usr/bin/env\s+)?(?P<path>\S+)(?P<options>(?:\s+-\S+)*)\s*$")
RUN = "$(TESSERA_JOB_ID)-$(TESSERA_ATTEMPT)"
_SOURCE = re.compile(r"(?<=\$)BASH_SOURCE\b(?!\[)|(?<=\$\{)BASH_SOURCE\b(?:\[(?:0|-1)\])?(?!\[)")
"""The file from which bash reads a script. A script that is an argument has none, though it has a `$0`."""
OWN_NAME = re.compile(r"\$(?:\{0\b|0)")
"""A shell's word for how the script is called."""

SUBMIT_DIR = "SLURM_SUBMIT_DIR"
"""The directory in which a script begins: of the pod, since none of the submitting machine is there."""

RESTART_COUNT = "SLURM_RESTART_COUNT"
"""How often a run was followed by another; as with Slurm only those after the first have it."""
COUNTED = f"""\
[ "${{TESSERA_ATTEMPT:-1}}" -le 1 ] || export {RESTART_COUNT}="${{{RESTART_COUNT}:-$((TESSERA_ATTEMPT - 1))}}"
"""

EXPORTS = {SUBMIT_DIR: f'export {SUBMIT_DIR}="${{{SUBMIT_DIR}:-$PWD}}"\n', RESTART_COUNT: COUNTED}
"""Variables that a shell sets before the script which names them."""

LOGIN = {r"\w*sh(?: -\w+)* -(?:\w*l\w*|-login)": 'PATH="${TESSERA_STEPS_PATH%%:*}:$PATH:$TESSERA_STEPS_PATH"\n'}
"""A login shell's profile sets PATH anew: what the pod had there counts behind it, but `srun` comes first."""

SCONTROL = """\
scontrol() {
  case "${1-} ${2-} ${3:-$SLURM_JOB_NODELIST}" in
    "show hostname $SLURM_JOB_NODELIST"|"show hostnames $SLURM_JOB_NODELIST") ;;
    *) echo "scontrol $*: in a pod there is 'show hostnames' of the job's own nodes alone" >&2; return 1 ;;
  esac
  case "$SLURM_JOB_NODELIST" in *[*) ;; *) echo "$SLURM_JOB_NODELIST"; return ;; esac
  tessera_rank=0
  while [ "$tessera_rank" -lt "${SLURM_NTASKS:-1}" ]; do
    echo "${SLURM_JOB_NODELIST%%[*}$tessera_rank${SLURM_JOB_NODELIST##*]}"
    tessera_rank=$((tessera_rank + 1))
  done
}
"""
"""`scontrol show hostnames` for the shells that scripts are written for."""

SRUN_IN_A_SHELL = f"""\
#!/bin/sh
{srun.reader(1, passes_over=False)}\
  if [ "$tessera_ranks" -gt 1 ]; then
    echo "srun: this shell is in one of the allocation's $SLURM_NTASKS pods and reaches no other." >&2
    echo "srun: in all of them, from your machine: tessera srun --jobid=$SLURM_JOB_ID COMMAND; here: srun -n1" >&2
    return 1
  fi
  cd "$tessera_dir" && exec "$@"
}}
srun "$@"
"""
"""`srun` as a program for a shell in the first pod: what is for one rank runs here, the rest has a way out."""

SHELL_WITH_SRUN = """\
for directory in /usr/local/bin /tmp/tessera; do
  command -v srun >/dev/null && break
  { mkdir -p "$directory" && printf %s "$0" >"$directory/srun" && chmod 755 "$directory/srun"; } 2>/dev/null || continue
  PATH=$PATH:$directory
done
exec "$@"
"""
"""Run the arguments where `srun` is found: its text is `$0`, written to a directory of the pod that may be."""


@dataclass(frozen=True, slots=True)
class ScriptCommand:
    """The words that a pod runs, and sentences about why it cannot."""

    words: list[str]
    mistakes: tuple[str, ...] = ()


def is_shell(text: str) -> bool:
    """Whether the script's own interpreter is a shell."""
    match = FIRST_LINE.match(text.splitlines()[0] if text else "")
    return match is not None and SHELL.search(match["path"]) is not None


def command_of(
    text: str,
    where: str,
    arguments: tuple[str, ...] = (),
    tasks_of_a_node: int = 1,
    passes_over: bool = False,
    warning: SlurmWarning | None = None,
) -> ScriptCommand:
    """
    The script as one argument of its own interpreter, then its name and its own arguments; all of it literally.

    One that is too long for that is several arguments, and runs with the same name and arguments.
    With a `warning` other than SIGTERM a shell around it hands the signal on.
    """
    hands_on = warning is not None and warning.signal != "TERM"
    run = NOTED_STEP if hands_on else '"$@"'
    functions = {"srun": srun.function(tasks_of_a_node, passes_over, run), "scontrol": SCONTROL, **EXPORTS}
    made = _run_by_its_own(text, where, arguments, functions)
    if _python_of(text) and hands_on and warning is not None and not warning.to_script:
        mistake = f"{where}: --signal without B: reaches the steps of a shell alone; write B:{warning.signal}"
        return ScriptCommand(["true"], (*made.mistakes, mistake))
    if made.mistakes or not hands_on or warning is None:
        return made
    return ScriptCommand([literally(word) for word in ("/bin/sh", "-c", around(warning), "sbatch")] + made.words)


def command_with_steps(text: str, where: str, arguments: tuple[str, ...] = ()) -> ScriptCommand:
    """The same where the pods have the step runner, which brings `srun` and `scontrol` and hands signals on."""
    return _run_by_its_own(text, where, arguments, EXPORTS | LOGIN)


def _python_of(text: str) -> bool:
    match = FIRST_LINE.match(text.splitlines()[0] if text else "")
    return match is not None and PYTHON.search(match["path"]) is not None


def _run_by_its_own(text: str, where: str, arguments: tuple[str, ...], functions: Mapping[str, str]) -> ScriptCommand:
    """The script by its own interpreter; a shell gets those of the functions that the script names, before it."""
    mistakes = []
    match = FIRST_LINE.match(text.splitlines()[0] if text else "")
    path, options = ("", []) if match is None else (match["path"], match["options"].split())
    is_python = _python_of(text)
    used = "".join(made for name, made in functions.items() if not is_python and re.search(rf"\b{name}\b", text))
    if (size := len(text.encode(errors="replace"))) > SCRIPT_BYTES_MAX:
        way_out = "put the program into the image or a volume, and call it from a short script"
        mistakes.append(f"{where}: {size} bytes; a script has at most {SCRIPT_BYTES_MAX}: {way_out}")
    if match is None:
        mistakes.append(f"{where}: does not begin with #! and an interpreter; write #!/bin/bash")
    elif not is_python and SHELL.search(path) is None:
        mistakes.append(f"{where}: cannot be run by {path}; use a shell or Python, and call {path} from it")
    if mistakes:
        return ScriptCommand(["true"], tuple(mistakes))
    words = _run_by_python(text, arguments) if is_python else _run_by_shell(used + text, path, where, arguments)
    return ScriptCommand([literally(word) for word in (path, *options, *words)])


def _run_by_python(text: str, arguments: tuple[str, ...]) -> list[str]:
    """The words behind Python."""
    return for_python(text, arguments) if is_long(text) else ["-c", text, *arguments]


def _run_by_shell(text: str, path: str, where: str, arguments: tuple[str, ...]) -> list[str]:
    """
    The words behind a shell. `$0` of a script that asks for its name or file, by what a shell has for it, is a file
    of that name in the directory in which it begins: what it cuts off of that, in any way, is that directory.
    """
    if path.endswith("bash"):
        text = _SOURCE.sub("0", text)
    if OWN_NAME.search(text):
        where = f"./{where.rpartition('/')[2]}"
    elif not arguments:
        where = ""
    if is_long(text):
        return for_shell(text, where or path, arguments)
    return ["-c", text, *((where, *arguments) if where else ())]


def variables(name: str, tasks: int, gpus: int, cpus: str) -> dict[str, str]:
    """Slurm's variables of a pod that is a task; those that only its run knows refer to Tessera's own."""
    per_pod = dict.fromkeys(("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK"), str(gpus))
    per_pod |= {"SLURM_GPUS": str(gpus * tasks)}
    hosts = f"{RUN}-[0-{tasks - 1}].run-{RUN}" if tasks > 1 else f"{RUN}-0"
    return {
        "SLURM_JOB_ID": "$(TESSERA_JOB_NUMBER)",
        "SLURM_JOBID": "$(TESSERA_JOB_NUMBER)",
        "SLURM_JOB_NAME": literally(name),
        "SLURM_PROCID": "$(TESSERA_RANK)",
        "SLURM_NODEID": "$(TESSERA_RANK)",
        "SLURM_LOCALID": "0",
        "SLURM_NTASKS": str(tasks),
        "SLURM_NPROCS": str(tasks),
        "SLURM_NNODES": str(tasks),
        "SLURM_JOB_NUM_NODES": str(tasks),
        "SLURM_NTASKS_PER_NODE": "1",
        "SLURM_TASKS_PER_NODE": f"1(x{tasks})" if tasks > 1 else "1",
        "SLURMD_NODENAME": f"{RUN}-$(TESSERA_RANK).run-{RUN}" if tasks > 1 else f"{RUN}-0",
        **(
            dict.fromkeys(("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE", "SLURM_JOB_CPUS_PER_NODE"), cpus)
            if cpus
            else {}
        ),
        "SLURM_JOB_NODELIST": hosts,
        "SLURM_NODELIST": hosts,
        **(per_pod if gpus else {}),
    }


def describe_array(tasks: str, written: str) -> dict[str, str]:
    """Slurm's variables of a task of the array with these indexes, and as the script has them; none without one."""
    if not tasks:
        return {}
    ranges, step = task_ranges(tasks), re.search(r":([0-9]+)", written)
    return {
        "SLURM_ARRAY_JOB_ID": "$(TESSERA_ARRAY_NUMBER)",
        "SLURM_ARRAY_TASK_ID": "$(TESSERA_ARRAY_TASK)",
        "SLURM_ARRAY_TASK_COUNT": str(task_count(tasks)),
        "SLURM_ARRAY_TASK_MIN": str(ranges[0].first),
        "SLURM_ARRAY_TASK_MAX": str(ranges[-1].last),
        "SLURM_ARRAY_TASK_STEP": str(int(step[1])) if step else "1",
    }


STEPS = "TESSERA_STEPS"
"""Variable with the file in which steps note their process numbers."""
NOTED_STEP = f"""sh -c '{{ echo "$$" >>"${STEPS}"; }} 2>/dev/null; exec "$@"' srun "$@\""""
"""A step that notes its number and becomes the program."""


def around(warning: SlurmWarning) -> str:
    """A shell's text that runs its arguments and hands the signal on."""
    whom = '"$tessera_script"' if warning.to_script else f'$(cat "${STEPS}")'
    return f"""\
export {STEPS}="${{TMPDIR:-/tmp}}/tessera-steps-$$"
tessera_script='' tessera_told=''
tessera_tell() {{ tessera_told=yes; [ -z "$tessera_script" ] || kill -s {warning.signal} {whom}; }} 2>/dev/null
trap tessera_tell TERM
"$@" &
tessera_script=$!
${{tessera_told:+tessera_tell}}
while :; do
  wait "$tessera_script"; tessera_code=$?
  kill -0 "$tessera_script" 2>/dev/null || exit "$tessera_code"
done
"""


def is_long(text: str) -> bool:
    """Whether one argument does not hold the text."""
    return len(literally(text)) > ARGUMENT_CHARACTERS or len(text.encode(errors="replace")) > ARGUMENT_BYTES


def for_shell(text: str, name: str, arguments: Sequence[str]) -> list[str]:
    """Words behind a shell that run the text with `name` as `$0`; the pieces are shifted away before its first line."""
    pieces = _pieces(text)
    whole = "".join(f"${{{place}}}" for place in range(1, len(pieces) + 1))
    return ["-c", f'eval "shift {len(pieces)};{whole}"', name, *pieces, *arguments]


def for_python(text: str, arguments: Sequence[str]) -> list[str]:
    """Words behind Python that run the text as its main module."""
    pieces = _pieces(text)
    whole = f"''.join(__import__('sys').argv.pop(1) for _ in range({len(pieces)}))"
    return ["-c", f"exec(compile({whole}, '<string>', 'exec'))", *pieces, *arguments]


def _pieces(text: str) -> list[str]:
    return [text[at : at + PIECE_CHARACTERS] for at in range(0, len(text), PIECE_CHARACTERS)]
