"""
The tables in the docs that follow from the code: `make schemas` writes them, `make check` compares them.

Each stands between two comments, `<!-- made: NAME -->` and `<!-- end -->`, in the page that shows it.
"""

import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from docs import make_reference
from tessera.client.slurm.scripts.options import OPTIONS, Option
from tessera.domain.work import phases
from tessera.domain.work.evidence import EVIDENCE
from tessera.reclamation.health.conditions import CONDITIONS, FALSE
from tessera.reclamation.health.xids import XIDS
from tessera_schemas.cluster.device_vendors import GPU_RESOURCES, GpuResource
from tessera_schemas.cluster.health import MEANINGS
from tessera_schemas.reasons import SENTENCES, Code
from tessera_schemas.shard.services import EVERY_USES, SPECS, RedisUse, ServiceSpec
from tessera_schemas.shard.streams import DAY_SECONDS, HOUR_SECONDS, Retention, StreamSpec, streams
from tessera_schemas.work.run_ends import RUN_ENDS, PauseRule, RunEnd

ROOT = Path(__file__).parents[1]
MADE = re.compile(r"(<!-- made: ([\w-]+) -->\n).*?( *<!-- end -->)", re.DOTALL)
SHARD = "<shard>"


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    heads = list(heads)
    lines = [f"| {' | '.join(cells)} |\n" for cells in (heads, *rows)]
    return "".join([lines[0], "|" + "---|" * len(heads) + "\n", *lines[1:]])


def kept(spec: StreamSpec) -> str:
    """How long a stream keeps a message."""
    days, hours = spec.max_age_seconds // DAY_SECONDS, spec.max_age_seconds // HOUR_SECONDS
    return {
        Retention.KEPT: "always",
        Retention.WORK_QUEUE: "until handled",
        Retention.AGE: f"{days} days" + (", or `--events-gib`" if spec.name.startswith("EVENTS_") else ""),
        Retention.LAST: f"the last {spec.last} per subject" + (f", {hours} h" if hours else ""),
    }[spec.retention]


def streams_table() -> str:
    """Every stream: its subjects, how long it is kept, who writes and who reads it."""
    every = {spec.name for spec in SPECS}

    def roles(names: Iterable[str]) -> str:
        found = list(names)
        others = [name for name in found if name not in every]
        return ", ".join(["every service", *others]) if every <= set(found) else ", ".join(found)

    def row(spec: StreamSpec) -> list[str]:
        subjects = ", ".join(f"`{subject}`" for subject in spec.subjects)
        return [spec.name.removesuffix(f"_{SHARD}"), subjects, kept(spec), roles(spec.writers), roles(spec.readers)]

    return table(["stream", "subject", "kept", "written by", "read by"], map(row, streams(SHARD)))


def read_by(spec: ServiceSpec) -> list[str]:
    """What a service reads, the snapshots of the ledger left out."""
    read = [stream for stream in spec.reads if stream not in ("SNAP", *EVERY_USES)]
    http = ["HTTP"] if spec.serves_http else []
    redis = ["Redis"] if spec.redis in (RedisUse.NEEDS, RedisUse.READS) else []
    cluster = ["Kubernetes"] if spec.calls_cluster else []
    ends = [f"the end of {stream}" for stream in spec.fetches]
    return [*http, *read, *redis, *ends, *cluster, *spec.outside]


def written_by(spec: ServiceSpec) -> list[str]:
    """What a service writes."""
    cluster = ["Kubernetes"] if spec.changes_cluster else []
    redis = ["Redis"] if spec.redis is RedisUse.WRITES else []
    answers = ["the client's inbox"] if spec.answers else []
    return [*cluster, *redis, *spec.writes, *answers]


def operated_table() -> str:
    """What each service decides and writes, and what its death means."""
    rows = ([spec.name, spec.decides, ", ".join(written_by(spec)), spec.without_it] for spec in SPECS)
    return table(["service", "decides", "writes", "what its death means"], rows)


def services_table() -> str:
    """What each service reads and writes, and how its replicas share the work."""
    rows = ([spec.name, ", ".join(read_by(spec)), ", ".join(written_by(spec)), spec.replicas.value] for spec in SPECS)
    return table(["service", "reads", "writes", "replicas"], rows)


def _said(option: Option) -> str:
    return f"`--{option.name}`" + (f", `-{option.short}`" if option.short else "")


def honoured_table() -> str:
    """Every option of `sbatch` that means something here."""
    rows = ([_said(option), option.becomes] for option in OPTIONS if option.becomes)
    return table(["option", "becomes"], rows)


def refused_table() -> str:
    """Every option of `sbatch` that is known and refused."""
    return table(["option", "way out"], _by_way_out(option for option in OPTIONS if not option.advisory))


def advisory_table() -> str:
    """Every option of `sbatch` that is passed over with a note."""
    return table(["option", "note"], _by_way_out(option for option in OPTIONS if option.advisory))


def _by_way_out(options: Iterable[Option]) -> Iterable[list[str]]:
    """One row for all options that have the same way out."""
    rows: dict[str, list[str]] = {}
    for option in options:
        if option.way_out:
            rows.setdefault(option.way_out, []).append(_said(option))
    return ([", ".join(said), way_out] for way_out, said in rows.items())


PAUSES = {
    PauseRule.NONE: "none",
    PauseRule.OWN: "back-off",
    PauseRule.SHORT: "1 to 60 s",
    PauseRule.LATE: "late",
    PauseRule.RUNS: "1 to 60 s by runs",
}


def run_ends_table() -> str:
    """Every cause for which a run may end before its success, and who pays for it."""

    def row(code: Code, end: RunEnd) -> list[str]:
        node = "takes no other pods for a while" if end.backs_off else "avoided by the job" if end.avoids else ""
        attempt = "spent" if end.spends else ""
        return [f"`{code.value}`", SENTENCES[code], end.whose, end.word, attempt, PAUSES[end.pause], node, end.limit]

    heads = ["cause", "meaning", "whose", "what says stop", "attempt", "pause", "node", "at the limit"]
    return table(heads, (row(code, end) for code, end in RUN_ENDS.items()))


def health_table() -> str:
    """Every cause for which a machine is not well, and what is done about it."""
    rows = ([f"`{cause}`", meaning, f"`{action}`"] for cause, (meaning, action) in MEANINGS.items())
    return table(["cause", "meaning", "usual action"], rows)


def vendors_table() -> str:
    """Resources of nodes that are GPUs, and the labels that tell of them."""

    def row(kind: GpuResource) -> list[str]:
        labels = (kind.model_label, kind.memory_label, kind.count_label)
        return [f"`{kind.resource}`", *(f"`{label}`" if label else "" for label in labels)]

    return table(["resource", "model", "memory", "number of cards"], map(row, GPU_RESOURCES))


def never_table() -> str:
    """Every test that a node may fail, and what a refusal for good is judged by."""
    rows = ([f"`{failure.value}`", "yes" if row.refuses else "no", row.text] for failure, row in EVIDENCE.items())
    return table(["the test that all nodes fail", "refuses for good", "judged by"], rows)


def xids_table() -> str:
    """XIDs that tell of a sick GPU, and of what cause."""
    rows = ([str(number), xid.meaning, f"`{xid.cause}`", "yes" if xid.stays else ""] for number, xid in XIDS.items())
    return table(["XID", "meaning", "cause", "stays"], rows)


def conditions_table() -> str:
    """Conditions of nodes that are bad news, by cause."""
    by_cause: dict[str, list[str]] = {}
    for name, cause in CONDITIONS.items():
        by_cause.setdefault(cause, []).append(f"`{name.replace(FALSE, '')}`{' (False)' if FALSE in name else ''}")
    return table(["cause", "conditions"], ([f"`{cause}`", ", ".join(names)] for cause, names in by_cause.items()))


TABLES: dict[str, Callable[[], str]] = {
    "xids": xids_table,
    "conditions": conditions_table,
    "run-ends": run_ends_table,
    "health": health_table,
    "streams": streams_table,
    "services": services_table,
    "services-operated": operated_table,
    "never": never_table,
    "vendors": vendors_table,
    "slurm-options": honoured_table,
    "slurm-advisory": advisory_table,
    "slurm-refused": refused_table,
}
PAGES = (
    "README.md",
    "docs/architecture.md",
    "docs/contract.md",
    "docs/kubernetes-devices.md",
    "docs/placement.md",
    "docs/run-ends.md",
    "docs/health.md",
    "docs/slurm.md",
)


def files() -> dict[str, str]:
    """The text of each page, its tables made anew."""
    pages = {
        page: MADE.sub(lambda found: found[1] + TABLES[found[2]]() + found[3], (ROOT / page).read_text())
        for page in PAGES
    }
    reference = {page: make() for page, make in make_reference.PAGES.items()}
    return {**pages, "docs/phases.md": phases.page(), **reference}


def main(arguments: list[str]) -> int:
    """Write the pages, or with `--check` name those that are not current."""
    stale = [page for page, text in files().items() if not (ROOT / page).exists() or (ROOT / page).read_text() != text]
    if "--check" not in arguments:
        for page in stale:
            (ROOT / page).parent.mkdir(exist_ok=True)
            (ROOT / page).write_text(files()[page])
        return 0
    for page in stale:
        print(f"stale: {page}; run `make schemas`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
