"""Values of Slurm's options: times, memory, lists of hosts, arrays, dependencies. Each raises Failure."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NoReturn

from tessera.client.outcomes import Exit, Failure
from tessera_schemas.text import quantities
from tessera_schemas.text.quantities import QuantityError
from tessera_schemas.work.arrays import INDEX_MAX, TASKS_MAX

UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
HOURS = {"midnight": "00:00", "noon": "12:00", "teatime": "16:00"}
TIME_OF_DAY = re.compile(r"[0-9]{1,2}:[0-9]{2}(:[0-9]{2})?")
HOSTS_MAX = 64  # values of one affinity term
NO_LIMIT = ("UNLIMITED", "INFINITE", "-1")
LIMITS = "minutes, 90:00, 2:00:00, 1-12:00:00 or UNLIMITED"
NUMBERS = "[0-9]{1,9}(?:-[0-9]{1,9})?"


@dataclass(frozen=True, slots=True)
class Said:
    """An option with its value, and the script in which it stands: what a mistake in it is called, with its `sign`."""

    where: str
    name: str
    text: str
    sign: str = "--"

    def fail(self, why: str) -> NoReturn:
        """Raises Failure about this value."""
        raise Failure(Exit.USAGE, f"{self.where}: {self.sign}{self.name}={self.text}: {why}")


def seconds_of(said: Said) -> int:
    """Slurm's times, as minutes, hours:minutes:seconds or days-hours:minutes; 0 for none at all and for no limit."""
    seconds = 0 if said.text.upper() in NO_LIMIT else quantities.slurms_seconds(said.text)
    return said.fail(f"write {LIMITS}") if seconds is None else seconds


def is_unbounded(text: str) -> bool:
    """Whether a time is no limit at all."""
    return text.upper() in NO_LIMIT or quantities.slurms_seconds(text) == 0


def count_of(said: Said) -> int:
    """A number from 1 on; of nodes the least of `2-4`, as Slurm has a least and a most."""
    least, dash, most = said.text.partition("-") if said.name == "nodes" else (said.text, "", "")
    if not all(re.fullmatch(r"[1-9][0-9]{0,5}", each) for each in (least, *((most,) if dash else ()))):
        said.fail("write one number from 1 on")
    return said.fail("the most is below the least") if dash and int(most) < int(least) else int(least)


def memory_of(said: Said) -> int:
    """Bytes; megabytes without a unit."""
    match = re.fullmatch(r"([0-9]{1,12})([KMGT]?)B?", said.text.upper())
    if match is None:
        said.fail("write 64G, 512M or megabytes")
    try:
        return quantities.memory_bytes(f"{match[1]}{match[2] or 'M'}i")
    except QuantityError as error:
        said.fail(str(error))


MIG = re.compile(r"(?:(?P<model>[\w-]+?)[_.])?(?P<profile>[1-9]g\.[0-9]{1,3}gb)")
"""A type of `gpu` that is an instance of MIG, of any model or of one: `3g.40gb`, `a100_3g.20gb`."""


def gpus_of(said: Said) -> tuple[int, str]:
    """A number of GPUs and their model, "" for any; of `--gres` the part that is about GPUs."""
    if said.name == "gres":
        models = [(count, name.partition(":")[2]) for name, count in gres_of(said).items() if is_gpu(name)]
        if len(models) > 1:
            said.fail("a pod has GPUs of one model, or of any: write one gpu:NUMBER, or one gpu:MODEL:NUMBER")
        return models[0] if models else (0, "")
    if "," in said.text:
        said.fail("a pod has GPUs of one model, or of any: write one number, or one model:number")
    words = said.text.split(":")
    if len(words) > 2 or not re.fullmatch(r"[0-9]{1,6}", words[-1]):
        said.fail("write a number, or model:number")
    return int(words[-1]), words[0] if len(words) == 2 else ""


GRES = re.compile(
    r"(?P<name>[a-z][a-z0-9_-]{0,62}(?::(?![0-9]+[A-Za-z]?$)[A-Za-z0-9][A-Za-z0-9._-]{0,62})?)(?::(?P<count>[0-9]{1,6}))?"
)
"""`NAME[:TYPE][:COUNT]`; a type is no amount such as `4` or `100G`."""


def gres_of(said: Said) -> dict[str, int]:
    """Number of each generic resource of a node by its name, or name:type: `gpu:a100:2,nic` is two and one."""
    found: dict[str, int] = {}
    for part in said.text.split(","):
        match = GRES.fullmatch(part)
        if match is None:
            said.fail(f"{part}: write gpu:8, gpu:h100:8, or NAME:NUMBER of the configuration's gres")
        if count := int(match["count"] or 1):
            found[match["name"]] = found.get(match["name"], 0) + count
    return found


def is_gpu(gres: str) -> bool:
    """Whether a generic resource is GPUs."""
    return gres.partition(":")[0] == "gpu"


def begin_ms(said: Said, now: datetime) -> int:
    """Milliseconds since the epoch at which it may begin; a time of day that is past is tomorrow's."""
    try:
        return _moment_ms(HOURS.get(said.text.lower(), said.text.lower()), now)
    except (ValueError, OverflowError):  # 25:00, and weeks beyond the calendar, too
        said.fail("write now+2hours, 16:00, tomorrow or 2030-01-31T12:00")


def since_ms(said: Said, now: datetime) -> int:
    """Milliseconds since the epoch: so long ago, or since a time that is past; a time of day is the last one."""
    now_ms = int(now.timestamp() * 1000)
    try:
        return now_ms - 1000 * quantities.seconds(said.text)
    except QuantityError:
        try:
            at = _moment_ms(said.text.lower(), now)
        except (ValueError, OverflowError):
            said.fail("write 2h, 7d, today, now-2days or 2030-01-31T12:00")
    return at - 1000 * UNITS["day"] if now_ms < at and TIME_OF_DAY.fullmatch(said.text) else at


def _moment_ms(text: str, now: datetime) -> int:
    if match := re.fullmatch(r"now(?:([+-][0-9]{1,7})(second|minute|hour|day|week)?s?)?", text):
        at = now + timedelta(seconds=int(match[1] or 0) * UNITS[match[2] or "second"])
    elif text == "tomorrow":
        at = _next_day(now)
    elif text == "today":
        at = now.replace(hour=0, minute=0, second=0, microsecond=0)
    elif TIME_OF_DAY.fullmatch(text):
        hour, minute, second = [*map(int, text.split(":")), 0][:3]
        at = now.replace(hour=hour, minute=minute, second=second, microsecond=0)
        at = at if at > now else at + timedelta(days=1)
    else:
        at = datetime.fromisoformat(text.upper())
    return int((at if at.tzinfo else at.astimezone()).timestamp() * 1000)


def _next_day(now: datetime) -> datetime:
    return (now + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)


def hosts_of(said: Said) -> list[str]:
    """`gpu-[1-3,07],other` as names."""
    found: list[str] = []
    for part in re.split(r",(?![^\[]*\])", said.text):
        match = re.fullmatch(rf"([a-z0-9.-]*)\[({NUMBERS}(?:,{NUMBERS})*)\]([a-z0-9.-]*)", part)
        numbers = [""] if match is None else _numbers(match[2])
        if not numbers:
            said.fail("write each range upwards, such as gpu-[1-3]")
        before, after = (part, "") if match is None else (match[1], match[3])
        found += [f"{before}{number}{after}" for number in numbers]
    if len(found) > HOSTS_MAX or not all(re.fullmatch(r"[a-z0-9][a-z0-9.-]*", name) for name in found):
        said.fail(f"write at most {HOSTS_MAX} names of nodes, such as gpu-[1-3],gpu-7")
    return found


def _numbers(text: str) -> list[str]:
    """Numbers of a bracket; none where a range goes downwards."""
    found: list[str] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if int(last or first) < int(first):
            return []
        end = min(int(last or first), int(first) + HOSTS_MAX)
        found += [f"{number:0{len(first)}}" for number in range(int(first), end + 1)]
    return found


def array_of(said: Said) -> dict[str, str | int]:
    """The job's `array`: indexes in ascending order, as many at once as `%` says."""
    tasks, percent, limit = said.text.partition("%")
    if percent and not re.fullmatch(r"[1-9][0-9]{0,5}", limit):
        said.fail("write a number behind %, from 1 on")
    indexes: set[int] = set()
    for part in tasks.split(","):
        match = re.fullmatch(r"([0-9]{1,7})(?:-([0-9]{1,7})(?::([0-9]{1,7}))?)?", part)
        if match is None or int(match[3] or 1) < 1 or int(match[2] or match[1]) > INDEX_MAX:
            said.fail(f"write 0-9, 1,3,5-7:2 or 0-99%4, with indexes up to {INDEX_MAX}")
        indexes.update(range(int(match[1]), int(match[2] or match[1]) + 1, int(match[3] or 1)))
    if not 0 < len(indexes) <= TASKS_MAX:
        said.fail(f"write from 1 to {TASKS_MAX} indexes, each range upwards")
    return {"tasks": _ranges(sorted(indexes))} | ({"limit": int(limit)} if limit else {})


def _ranges(indexes: Sequence[int]) -> str:
    """Runs of equal steps, each as one range."""
    parts, at = list[str](), 0
    while at < len(indexes):
        step = indexes[at + 1] - indexes[at] if at + 1 < len(indexes) else 1
        end = at
        while end + 1 < len(indexes) and indexes[end + 1] - indexes[end] == step:
            end += 1
        if end - at == 1 and step > 1:  # a pair is no run: its second may begin one
            end = at
        tail = f"-{indexes[end]}" + (f":{step}" if step > 1 else "") if end > at else ""
        parts.append(f"{indexes[at]}{tail}")
        at = end + 1
    return ",".join(parts)


CONDITIONS = ("afterok", "afternotok", "afterany", "after", "aftercorr")


def dependencies_of(said: Said) -> list[tuple[str, str]]:
    """Conditions with the jobs as named, "" for none; those that are joined by `?` or delayed by `+` are refused."""
    if "?" in said.text:
        said.fail("conditions joined by ? are not there: all must hold; submit one job for each")
    found: list[tuple[str, str]] = []
    for part in said.text.split(","):
        condition, *jobs = part.split(":")
        if condition == "singleton" and not jobs:
            found.append((condition, ""))
            continue
        if condition not in CONDITIONS or not jobs or not all(jobs):
            said.fail(f"write {', '.join(CONDITIONS)} with :JOB behind it, or singleton")
        if any("+" in job for job in jobs):
            said.fail("a delay after a condition is not there: sleep in the script, or say --begin")
        found += [(condition, job) for job in jobs]
    return found


def _either_of(said: Said, parts: Sequence[str]) -> dict[str, object]:
    """One term for `zone=a|zone=b`: a label with one of several values."""
    pairs = [part.partition("=") for part in parts]
    if len({key for key, _, _ in pairs}) > 1 or not all(value for _, _, value in pairs):
        said.fail("of several labels all must hold (&); with | write values of one: zone=a|zone=b")
    return {"key": pairs[0][0], "operator": "In", "values": [value for _, _, value in pairs]}


def constraint_of(said: Said) -> list[dict[str, object]]:
    """Terms of a role's affinity: a label that is there, or one with its value; all must hold."""
    terms: list[dict[str, object]] = []
    for part in re.split(r"[&,]", said.text):
        if "|" in part:
            terms.append(_either_of(said, part.strip("[]()").split("|")))
            continue
        key, equals, value = part.partition("=")
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9./_-]*", key):
            said.fail("write labels of nodes joined by &, such as nvlink&zone=a; a model of GPU is --gpus=MODEL:N")
        value_of = {"operator": "In", "values": [value]} if equals else {"operator": "Exists"}
        terms.append({"key": key, **value_of})
    return terms


@dataclass(frozen=True, slots=True)
class SlurmWarning:
    """A signal so many seconds before a run is killed: to the script's own shell, or to its steps."""

    signal: str
    seconds: int
    to_script: bool


SIGNALS: Mapping[str, str] = {"1": "HUP", "2": "INT", "3": "QUIT", "10": "USR1", "12": "USR2", "15": "TERM"}


def warning_of(said: Said) -> SlurmWarning:
    """Slurm's `B:USR1@120`."""
    match = re.fullmatch(r"(?:([BR]+):)?(?:SIG)?([A-Z0-9]+)(?:@([0-9]{1,4}))?", said.text.upper())
    name = "" if match is None else SIGNALS.get(match[2], match[2])
    seconds = 60 if match is None else int(match[3] or 60)
    if match is None or name not in SIGNALS.values() or seconds > 3600:
        said.fail(f"write one of {', '.join(SIGNALS.values())} with @SECONDS, at most 3600, such as TERM@120")
    return SlurmWarning(name, seconds, "B" in (match[1] or ""))


def grace_of(said: Said) -> int:
    """Seconds between the signal and the kill."""
    return warning_of(said).seconds


def exports_all(text: str) -> bool:
    """Whether the variables of who submits go along, as they do by default."""
    return "ALL" in text.upper().split(",")


def exported(said: Said, environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that are named for the pods; those without a value have the one of `environment`."""
    if said.text.upper() in ("NONE", "NIL"):
        return {}
    found: dict[str, str] = {}
    for part in said.text.split(","):
        name, equals, value = part.partition("=")
        if name.upper() == "ALL" and not equals:
            continue
        if not equals and name not in environment:
            said.fail(f"{name} is not set here; write {name}=VALUE")
        found[name] = value if equals else environment[name]
    return found


def image_of(said: Said) -> str:
    """The image as Kubernetes names it; `HOST#IMAGE` is how pyxis does."""
    host, _, image = said.text.removeprefix("docker://").rpartition("#")
    if "#" in host or "@" in host:
        said.fail("write HOST#IMAGE; who may pull is said by secrets of the namespace")
    if image.startswith((".", "/")) or image.endswith(".sqsh"):
        said.fail("a file is no image here: push it to a registry, and write HOST/IMAGE:TAG")
    return f"{host}/{image}" if host else image


def queues_of(said: Said) -> list[str]:
    """Names of queues, of which the first that can hold the job is meant."""
    queues = said.text.split(",")
    if not all(re.fullmatch(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", queue) for queue in queues):
        said.fail("no queue is called so: lower-case letters, digits and dashes (`tessera queue list`)")
    return queues


MOUNT_FLAGS = ("ro", "rw", "bind", "rbind")


def mounts_of(said: Said) -> list[dict[str, object]]:
    """Volumes of pyxis' `SRC:DST[:FLAGS],…`; SRC alone is mounted where it is."""
    found: list[dict[str, object]] = []
    for part in said.text.split(","):
        source, _, rest = part.partition(":")
        target, _, flags = rest.partition(":")
        target, asked = target or source, [flag for flag in re.split(r"[+:]", flags) if flag]
        if not source.startswith("/") or not target.startswith("/"):
            said.fail("write SRC:DST with whole paths, and :ro behind them for read-only")
        if unknown := [flag for flag in asked if flag not in MOUNT_FLAGS]:
            said.fail(f"{unknown[0]}: no such flag; there are {', '.join(MOUNT_FLAGS)}")
        found.append(
            {"kind": "mapped", "path": source, "mount_path": target} | ({"read_only": True} if "ro" in asked else {})
        )
    return found


GPU_BIND = re.compile(
    r"(?:v(?:erbose)?,)?(?:none|closest|(?:single|per_task):[1-9]\d*|map_gpu:[\d*]+(?:,[\d*]+)*|mask_gpu:[\da-fx*]+(?:,[\da-fx*]+)*)"
)


def gpu_bind_of(said: Said) -> str:
    """How the tasks of a step share its GPUs in a pod, as the step runner reads it."""
    if not GPU_BIND.fullmatch(said.text):
        said.fail("write none, closest, single:NUMBER, per_task:NUMBER, map_gpu:LIST or mask_gpu:LIST")
    return said.text


READERS: Mapping[str, Callable[[Said], object]] = {
    "array": array_of,
    "partition": queues_of,
    "container-image": image_of,
    "container-mounts": mounts_of,
    "constraint": constraint_of,
    "dependency": dependencies_of,
    "gpu-bind": gpu_bind_of,
    "signal": grace_of,
    "time": seconds_of,
    **dict.fromkeys(
        ("cpus-per-task", "cpus-per-gpu", "nodes", "ntasks", "ntasks-per-node", "ntasks-per-gpu"), count_of
    ),
    **dict.fromkeys(("exclude", "nodelist"), hosts_of),
    **dict.fromkeys(("gres", "gpus", "gpus-per-node", "gpus-per-task"), gpus_of),
    **dict.fromkeys(("mem", "mem-per-cpu", "mem-per-gpu"), memory_of),
}
"""What reads the value of an option by itself; `begin` and `export` need the time and the shell besides."""
