"""
`srun` in a script: what each option of a step becomes, and the shell's function that reads them in a pod.

Each pod runs the whole script, and a step runs its command in the pods of its first ranks. What that cannot honour is
refused by its name: at submit with its line, as far as the script says it outright, and by the function in the pod.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class StepKind(Enum):
    """Ways to treat an option: honoured, true anyway, passed over with a note, refused."""

    HONOURED = "honoured"
    ANYWAY = "anyway"
    NOTED = "noted"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class StepOption:
    """An option by its long name; `why` is the note, or the way out."""

    name: str
    kind: StepKind
    why: str = ""
    short: str = ""
    flag: bool = False


def _options(kind: StepKind, names: str, why: str = "", flag: bool = False) -> tuple[StepOption, ...]:
    """Options of one kind, as `name:short name`."""
    return tuple(
        StepOption(long, kind, why, short, flag) for long, _, short in (each.partition(":") for each in names.split())
    )


OWN_RESOURCES = "a task has the CPU, the memory and the GPUs of its pod"
STEP_OPTIONS: tuple[StepOption, ...] = (
    *_options(StepKind.HONOURED, "ntasks:n nodes:N ntasks-per-node chdir:D jobid export mpi"),
    *_options(
        StepKind.ANYWAY,
        "exact exclusive overlap pty label:l unbuffered:u quiet:Q verbose:v kill-on-bad-exit:K no-kill:k "
        "oversubscribe:s overcommit:O preserve-env:E disable-status:X immediate:I",
        flag=True,
    ),
    *_options(StepKind.ANYWAY, "wait:W job-name:J comment"),
    *_options(
        StepKind.NOTED,
        "cpus-per-task:c cpus-per-gpu mem mem-per-cpu mem-per-gpu gpus:G gpus-per-node gpus-per-task gpus-per-socket "
        "gres tres-per-task ntasks-per-gpu ntasks-per-core ntasks-per-socket cpu-bind cpu_bind gpu-bind mem-bind "
        "mem_bind distribution:m hint threads-per-core cores-per-socket sockets-per-node extra-node-info:B cpu-freq "
        "gpu-freq accel-bind",
        OWN_RESOURCES,
    ),
    *_options(
        StepKind.NOTED, "output:o error:e open-mode", "it is in the pods' logs; write > FILE for one in a volume"
    ),
    *_options(
        StepKind.REFUSED,
        "nodelist:w exclude:x relative:r nodefile:F",
        "a step does not choose its pods; write roles of a job file, or jobs that wait for each other",
    ),
    *_options(
        StepKind.REFUSED,
        "container-image container-mounts container-workdir container-name container-env container-save",
        "a step runs in its pod: say #SBATCH --container-image, --container-mounts and --chdir",
    ),
    *_options(StepKind.REFUSED, "time:t", "write timeout SECONDS behind srun"),
    *_options(StepKind.REFUSED, "input:i", "write < FILE"),
    *_options(StepKind.REFUSED, "het-group", "write roles of a job file"),
    *_options(StepKind.REFUSED, "multi-prog", "write roles of a job file, or choose by $SLURM_PROCID", flag=True),
)
KNOWN: Mapping[str, StepOption] = {f"--{option.name}": option for option in STEP_OPTIONS} | {
    f"-{option.short}": option for option in STEP_OPTIONS if option.short
}
UNKNOWN = StepOption("", StepKind.REFUSED, "no step in a script has it here: delete it")


_IN_POD = "a step runs in the container of its pod: say it for the job (#SBATCH)"
_OF_CONTAINERS = "container-mounts container-name container-env container-save container container-writable"
_OF_CONTAINERS += " container-readonly container-mount-home no-container-mount-home container-remap-root"
_OF_CONTAINERS += " no-container-remap-root container-entrypoint no-container-entrypoint"
REFUSED_BY_RUNNER: Mapping[str, str] = {
    "time": "write timeout SECONDS srun",
    "nodefile": "name the pods by -w",
    "het-group": "the parts of one step stand behind each other with a : between them",
    "tres-per-task": "say --gpus-per-task or -c",
    **dict.fromkeys(_OF_CONTAINERS.split(), _IN_POD),
    "container-workdir": "say --chdir",
    **dict.fromkeys(("prolog", "epilog", "task-prolog", "task-epilog"), "write it into the command"),
    "preserve-env": "delete it: a task's variables are those of its step",
    "bcast": "copy by a step of its own: srun --ntasks-per-node=1 cp",
}
"""Options that `srun` of the step runner refuses, each with its way out, as docs/steps.md has them."""
_TAKEN = """
ntasks nodes ntasks-per-node cpus-per-task nodelist exclude relative chdir export label unbuffered kill-on-bad-exit wait
exact exclusive overlap overcommit distribution gpus gpus-per-node gres gpus-per-task input output error open-mode
multi-prog quiet mpi jobid container-image no-kill oversubscribe disable-status verbose quit-on-interrupt job-name
comment threads msg-timeout slurmd-debug pty propagate immediate mem mem-per-cpu mem-per-gpu cpus-per-gpu
gpus-per-socket ntasks-per-gpu ntasks-per-core ntasks-per-socket cpu-bind gpu-bind mem-bind hint threads-per-core
cores-per-socket sockets-per-node extra-node-info cpu-freq gpu-freq accel-bind tres-bind partition account qos
constraint reservation dependency begin licenses array
"""
TAKEN_BY_RUNNER = frozenset(_TAKEN.split())
"""Options that it honours or passes over with a warning."""


def refused_by_runner(option: str, value: str) -> str | None:
    """The way out where `srun` of the step runner refuses an option, as far as that is known before it runs."""
    known = KNOWN.get(option, UNKNOWN)
    name = (known.name or option.removeprefix("--")).replace("_", "-")
    if name == "mpi":
        served = value in ("none", "pmi2") or not re.fullmatch(r"\w+", value)
        return None if served else "start it by mpirun, which starts its ranks by steps"
    if name in REFUSED_BY_RUNNER:
        return REFUSED_BY_RUNNER[name]
    # A short option that is not known may be any of the runner's own, and a variable may be anything.
    may_be = not re.fullmatch(r"--[\w-]+", option) or any(taken.startswith(name) for taken in TAKEN_BY_RUNNER)
    return None if may_be else UNKNOWN.why


def _pattern(*kinds: StepKind, flags: bool | None = None) -> str:
    """The options of these kinds as a shell's `case` has them, short ones first."""
    chosen = [option for option in STEP_OPTIONS if option.kind in kinds and flags in (None, option.flag)]
    return "|".join([f"-{o.short}" for o in chosen if o.short] + [f"--{o.name}" for o in chosen])


_FLAGS = "".join(option.short for option in STEP_OPTIONS if option.flag)


def reader(tasks_of_a_node: int, passes_over: bool) -> str:
    """
    The beginning of the function: options are taken off the arguments; `tessera_ranks` is how many ranks run the rest.

    What it does not honour it refuses, or says alone where it `passes_over` that.
    """
    refuse = ":" if passes_over else "return 1"
    return f"""\
srun() {{
  tessera_ranks='' tessera_nodes='' tessera_per='' tessera_dir=. tessera_value=''
  while [ $# -gt 0 ]; do
    case "$1" in
      --) shift; break ;;
      --*=*) tessera_name=${{1%%=*}} tessera_value=${{1#*=}}; shift ;;
      {_pattern(StepKind.ANYWAY, flags=True)}|-[{_FLAGS}]*|--multi-prog) tessera_name=${{1%%=*}}; shift ;;
      --*|-?)
        [ $# -gt 1 ] || {{ echo "srun: $1 has no value" >&2; return 1; }}
        tessera_name=$1 tessera_value=$2; shift 2 ;;
      -*) tessera_value=${{1#-?}}; tessera_name=${{1%"$tessera_value"}}; shift ;;
      *) break ;;
    esac
    case "$tessera_name $tessera_value" in
      "--jobid $SLURM_JOB_ID"|"--export ALL") continue ;;
    esac
    case "$tessera_name" in
      -n|--ntasks) tessera_ranks=$tessera_value ;;
      -N|--nodes) tessera_nodes=$tessera_value ;;
      --ntasks-per-node) tessera_per=$tessera_value ;;
      -D|--chdir) tessera_dir=$tessera_value ;;
      --mpi|{_pattern(StepKind.ANYWAY, StepKind.NOTED)}|-[{_FLAGS}]*) ;;
      *) echo "srun: $tessera_name: a step in a script does not honour it (docs/slurm.md)" >&2; {refuse} ;;
    esac
  done
  [ $# -gt 0 ] || {{ echo "srun: nothing to run" >&2; return 1; }}
  for tessera_value in "$@"; do
    [ "$tessera_value" != : ] || {{ echo "srun: several programs in one step (:) are not there" >&2; return 1; }}
  done
  for tessera_value in "${{tessera_ranks:-1}}" "${{tessera_nodes:-1}}" "${{tessera_per:-1}}"; do
    case "$tessera_value" in
      *[!0-9]*|0) echo "srun: $tessera_value: write one number from 1 on" >&2; return 1 ;;
    esac
    [ "$tessera_value" -le "${{SLURM_NTASKS:-1}}" ] || {{
      echo "srun: $tessera_value: the job has $SLURM_NTASKS tasks, a pod for each" >&2; return 1
    }}
  done
  if [ -z "$tessera_ranks" ]; then
    tessera_ranks=${{SLURM_NTASKS:-1}}
    if [ -n "$tessera_nodes$tessera_per" ]; then
      tessera_nodes=${{tessera_nodes:-$(( tessera_ranks / {tasks_of_a_node} ))}}
      tessera_value=$(( tessera_nodes * ${{tessera_per:-{tasks_of_a_node}}} ))
      [ "$tessera_value" -ge "$tessera_ranks" ] || tessera_ranks=$tessera_value
    fi
  fi
"""


def function(tasks_of_a_node: int, passes_over: bool, run: str = '"$@"') -> str:
    """`srun` for a shell script: the command in the pods of the first ranks, in the directory that is said."""
    return f"""\
{reader(tasks_of_a_node, passes_over)}\
  [ "${{SLURM_PROCID:-0}}" -lt "$tessera_ranks" ] || return 0
  if [ "$tessera_dir" = . ]; then {run}; else (cd "$tessera_dir" && {run}); fi
}}
"""
