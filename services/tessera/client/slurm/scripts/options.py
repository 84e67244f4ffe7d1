"""
Every option of `sbatch` that is known here: what it becomes, or the way out where nothing honours it.

The table in docs/slurm.md is made from this one. An option that is in neither half is refused by its name.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tessera.client.slurm.abbreviated import whole_name


@dataclass(frozen=True, slots=True)
class Option:
    """
    An option by its long name; `becomes` is empty where it is refused, and then `way_out` says what to do.

    One that is `advisory` changes nothing of what the job does: it is passed over, and `way_out` is a note.
    """

    name: str
    becomes: str = ""
    way_out: str = ""
    short: str = ""
    flag: bool = False
    advisory: bool = False


NO_MAIL = "mail is not sent: a webhook of the tenant gets the same events (docs/webhooks.md), or wait with --wait"


def _refused(name: str, way_out: str, short: str = "", flag: bool = False) -> Option:
    return Option(name, "", way_out, short, flag)


def _advisory(name: str, note: str, short: str = "", flag: bool = False) -> Option:
    return Option(name, "", note, short, flag, advisory=True)


OPTIONS: tuple[Option, ...] = (
    Option("account", "the tenant as which it is submitted, as `--as`", short="A"),
    Option("array", "`array`: a task for each index, with `%limit`; given by `--array=0-9`, `1,3,5-7:2%4`", short="a"),
    Option("begin", "`begin_ts`: `now+2hours`, `16:00`, `tomorrow`, `2030-01-31T12:00`", short="b"),
    Option("chdir", "the directory in which the script runs, in the image or a volume", short="D"),
    Option(
        "constraint", "labels that a node must have: `nvlink`, `zone=a`, several with `&`, `zone=a|zone=b`", short="C"
    ),
    Option("container-image", "the image; or `TESSERA_CONTAINER_IMAGE`"),
    Option("container-mounts", "volumes of paths that the configuration maps to claims: `/data:/mnt:ro`, `/data/set`"),
    Option("cpus-per-gpu", "CPU of a pod, for each of its GPUs"),
    Option("cpus-per-task", "CPU of a task", short="c"),
    Option("reservation", "`reservation`: it runs in the windows of that, on its nodes alone"),
    Option("deadline", "`deadline_ts`, with `--time`: the time by which it has ended, as for `--begin`"),
    Option("dependency", "`after`, all of them; jobs by id, task or name: `afterok:ID:ID,afterany:ID_7`", short="d"),
    Option("error", "with `--wait` as `--output`; a pod has one log for both", short="e"),
    Option("exclusive", "`exclusive`: nothing else of Tessera is on its nodes; with all of their GPUs", flag=True),
    Option("exclude", "nodes on which it does not run: `gpu-[1-3],gpu-7`", short="x"),
    Option(
        "export",
        "variables of the pods: `A=1,B` (B as it is here), `NONE`; `ALL`, the default: "
        "[those that the script reads](#variables-of-your-shell)",
    ),
    Option("gpu-bind", "which GPUs of their pod the tasks of a [step](steps.md#srun) see"),
    Option("gpus", "GPUs of the whole job, divided by its nodes: `8`, `h100:8`", short="G"),
    Option("gpus-per-node", "GPUs of a node"),
    Option("gpus-per-task", "GPUs of a task"),
    Option(
        "gres",
        "`gpu:8`, `gpu:h100:8`: as `--gpus-per-node`; `gpu:3g.40gb:1`, `gpu:a100_3g.20gb:1`: an instance of MIG; "
        "`nic:2`: devices that the [configuration names](#generic-resources)",
    ),
    Option("hold", "it is submitted held", short="H", flag=True),
    Option("job-name", "the name; without it the script's", short="J"),
    Option("mem", "memory of a node; megabytes without a unit"),
    Option("mem-per-cpu", "memory for each CPU of a pod"),
    Option("mem-per-gpu", "memory for each GPU of a pod"),
    Option(
        "no-requeue",
        "tries the program once, also where a [node fails or its pods are taken away](run-ends.md#rules-of-a-job); "
        "what did not start, is preempted or drained is queued again; of it and `--requeue` the last one counts",
        flag=True,
    ),
    Option("nodelist", "nodes on which alone it runs", short="w"),
    Option("nodes", "pods of the gang, of `1-3` the least; the scheduler chooses where they lie", short="N"),
    Option("ntasks", "tasks, on as few pods as the nodes allow, or evenly on those of `--nodes`", short="n"),
    Option("ntasks-per-node", "tasks of a node; with `--ntasks` the most of one"),
    Option("ntasks-per-gpu", "tasks, as many for each GPU"),
    Option("overcommit", "tasks of a node share one CPU, or those that come with its GPUs", short="O", flag=True),
    Option("output", "with `--wait`: file to which the log is written, `%A_%a`, `%j`, `%x`, `%u`, `%t`", short="o"),
    Option("parsable", "the number alone is printed", flag=True),
    Option("partition", "the queue; of `a,b` the first that can hold the job", short="p"),
    Option("priority", "the priority class, by name"),
    Option("quiet", "the number is not printed, either", short="Q", flag=True),
    Option("qos", "the priority class, by name", short="q"),
    Option("requeue", "retries as usual", flag=True),
    Option(
        "signal",
        "`USR1@120`: the steps get it so many seconds before the kill (`termination_grace_seconds`), with `B:` the "
        "script's shell; `TERM`: whatever traps it",
    ),
    Option(
        "spread-tasks",
        "not Slurm's: a pod [for each task](#a-pod-for-each-task), which runs the whole script",
        flag=True,
    ),
    Option("test-only", "admission judges it, and it is not submitted", flag=True),
    Option(
        "time",
        "the time limit: `90`, `2:00:00`, `1-12:00:00`; without it, or `UNLIMITED`, the default (docs/limits.md)",
        short="t",
    ),
    Option("wait", "until the job has ended; its end is the exit code", short="W", flag=True),
    Option("wrap", "a command in place of a script"),
    _advisory("acctg-freq", "usage is measured at its own pace"),
    _refused("bb", "`volumes` of a job file"),
    _refused("bbf", "`volumes` of a job file"),
    _refused("cluster-constraint", "a shard is chosen by --shard or a login"),
    _refused("clusters", "a shard is chosen by --shard or a login", short="M"),
    _advisory("comment", "comments are not kept"),
    _refused("container", "say --container-image"),
    _refused("container-env", "say --export=NAME=VALUE,…"),
    _refused("container-mount-home", "say --container-mounts with what the configuration maps", flag=True),
    _refused("container-name", "delete it: each pod has a fresh container of --container-image"),
    _refused("container-workdir", "say --chdir"),
    _refused("contiguous", "`topology` of a job file puts pods within one switch or rack", flag=True),
    _refused("core-spec", "delete it: cores are not told apart", short="S"),
    _refused("cores-per-socket", "delete it: sockets are not told apart"),
    _refused("cpu-freq", "delete it: pods do not choose clock rates"),
    _refused("distribution", "delete it: the scheduler chooses where pods lie", short="m"),
    _refused("export-file", "say --export=NAME=VALUE,…"),
    _refused("extra-node-info", "delete it: cores are not told apart", short="B"),
    _advisory("get-user-env", "variables are the image's, and those of --export", flag=True),
    _refused("gid", "the tenant's configuration says as whom pods run"),
    _refused("gpu-freq", "delete it: pods do not choose clock rates"),
    _refused("gpus-per-socket", "say --gpus-per-node"),
    _advisory("gres-flags", "the kubelet's topology manager decides"),
    _advisory("hint", "cores are not told apart"),
    _advisory("ignore-pbs", "#PBS lines are never read", flag=True),
    _refused("input", "read the file in the script; pods have no standard input", short="i"),
    _advisory("kill-on-invalid-dep", "a job whose dependency can never hold always ends"),
    _refused("licenses", "delete it: licenses are not counted", short="L"),
    _advisory("mail-type", NO_MAIL),
    _advisory("mail-user", NO_MAIL),
    _refused("mem-bind", "delete it: the kubelet's topology manager decides"),
    _refused("mincpus", "say --cpus-per-task"),
    _refused("network", "delete it; RDMA devices are `devices` of a job file"),
    _refused("nice", "say --qos with a lower priority class"),
    _advisory("no-container-mount-home", "no home directory goes into a pod", flag=True),
    _refused(
        "no-kill", "delete it; a job that goes on without some pods is elastic: `min_replicas` of a job file", "k"
    ),
    _refused("nodefile", "say --nodelist", short="F"),
    _advisory("ntasks-per-core", "cores are not told apart"),
    _refused("ntasks-per-socket", "say --ntasks-per-node: sockets are not told apart"),
    _advisory("open-mode", "a file of --output is always written anew"),
    _refused("oversubscribe", "ask for a share of a GPU: `gpu_milli` of a job file", short="s", flag=True),
    _refused("prefer", "say --constraint, or delete it"),
    _advisory("profile", "profiles are not gathered"),
    _refused("propagate", "delete it: limits are the image's"),
    _refused("reboot", "delete it: jobs do not restart nodes", flag=True),
    _refused("sockets-per-node", "delete it: sockets are not told apart"),
    _refused("spread-job", "delete it: the scheduler chooses where pods lie", flag=True),
    _refused("switches", "`topology` of a job file puts pods within one switch or rack"),
    _refused("thread-spec", "delete it: cores are not told apart"),
    _refused("threads-per-core", "delete it: cores are not told apart"),
    _refused("time-min", "delete it, and say the --time that it needs"),
    _refused("tmp", "`volumes` of a job file with `kind: empty`"),
    _refused("tres-bind", "delete it: a pod sees its own GPUs alone"),
    _refused("tres-per-task", "say --gpus-per-task, --cpus-per-task"),
    _refused("uid", "the tenant's configuration says as whom pods run"),
    _advisory("use-min-nodes", "the scheduler chooses where pods lie", flag=True),
    _advisory("verbose", "there is no more to say", short="v", flag=True),
    _refused("delay-boot", "delete it: nodes are not booted for jobs"),
    Option("wckey", "`project`: the project of the tenant for which its use is counted"),
    _advisory("wait-all-nodes", "the pods of a gang start together, or none does"),
    _refused("workdir", "say --chdir"),
)
KNOWN: Mapping[str, Option] = {option.name: option for option in OPTIONS}
SHORT: Mapping[str, str] = {option.short: option.name for option in OPTIONS if option.short}

OTHER_NAMES: Mapping[str, str] = {"tasks-per-node": "ntasks-per-node"}
"""Names that Slurm has twice."""
OWN = ("as", "context", "home", "ignore", "key", "shard")
"""Options of `tessera` itself, which may stand among Slurm's, in full: a beginning of one is Slurm's own option."""

Asked = tuple[str, str]
"""A long name and its value: `yes` for a flag, "" where a value is missing."""


_CUT = re.compile(r"""(?:[^#\\"']|\\.|"(?:\\.|[^"\\])*"|'[^']*')*(?<=\S)#\S""")
"""A line of which Slurm takes a part of a word, since `#` ends it even there."""


_PARTS = ("hetjob", "packjob")
_IN_PARTS = "a job of unlike parts has a role for each in a job file"


def split_line(line: str, at: str) -> tuple[list[Asked], list[str]]:
    """
    The options of one `#SBATCH` line, and what is wrong: quotes that do not close, a word that is no option, an image
    that `#` cuts to the name of its registry, as it does with Slurm.
    """
    try:
        words = shlex.split(line, comments=True)
    except ValueError as error:
        return [], [f"{at}: {error}; mend the quotes"]
    found, rest = split_words(words)
    wrong = (
        [f"{at}: {rest[0]!r} is no option; {_IN_PARTS if rest[0] in _PARTS else 'write --name=value'}"] if rest else []
    )
    if found and found[-1][0] == "container-image" and _CUT.match(line):
        name, image = found[-1]
        wrong.append(f"{at}: --{name}={image}#: # begins a comment, which cuts the image; write --{name}={image}/IMAGE")
    return found, wrong


def split_words(words: Sequence[str]) -> tuple[list[Asked], list[str]]:
    """
    Options up to the first word that is none, and the words from there on: the script and its arguments.

    A long name may be cut short, as far as it begins one option alone.
    """
    left, found = list(words), list[Asked]()
    while left and left[0].startswith("-") and len(left[0]) > 1:
        word = left.pop(0)
        if word == "--":
            break
        if word.startswith("--"):
            name, given, value = word[2:].partition("=")
            name = name if name in OWN else whole_name(name, (*KNOWN, *OTHER_NAMES))
            name = OTHER_NAMES.get(name, name)
        else:
            name, value = SHORT.get(word[1], word[1]), word[2:].removeprefix("=")
            given = value
        option = KNOWN.get(name)
        if option is not None and option.flag:
            value = value if given and word.startswith("--") else "yes"
        elif not given and left and not left[0].startswith("-") and (option is not None or name in OWN):
            value = left.pop(0)
        found.append((name, value))
    return found, left
