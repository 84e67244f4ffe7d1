"""How long jobs took from one moment of their lives to the next, by the ledger and by when their facts were stored."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import orjson

from tessera_lab.bench.report import percentile
from tessera_schemas.shard.ledger_form import plain_json

MOMENTS = (
    "sent", "admitted", "queued", "in line", "allocated", "pods made", "bound", "started", "ended", "released",
)  # fmt: skip
OF_RUNS = {"permitted": "pods made", "bound": "bound", "started": "started", "released": "released"}


class Lives:
    """Moments of jobs in ms: `sent` by its sender's clock, `admitted` by the server's, all others by the ledger's."""

    def __init__(self, stored: Iterable[bytes]) -> None:
        self._at: dict[str, dict[str, int]] = defaultdict(dict)
        self.fact_of: dict[str, int] = {}
        """Number of the fact by which each job came in."""
        for data in stored:
            self._take(orjson.loads(plain_json(data)))

    def note(self, job_id: str, moment: str, ts: int) -> None:
        """The first of several moments of a name counts: of an order that of the first one with the job."""
        self._at[job_id].setdefault(moment, ts)

    def table(self, groups: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
        """Each step at the median and the 99th percentile, for groups of jobs with when they were sent."""
        yield f"{'ms, median / p99':26}" + "".join(f"{name:>18}" for name in groups)
        for before, after in pairwise(MOMENTS):
            cells = [_cell(self._took(sent, before, after)) for sent in groups.values()]
            yield f"{before} to {after}".ljust(26) + "".join(f"{cell:>18}" for cell in cells)

    def _took(self, sent: Mapping[str, int], before: str, after: str) -> list[float]:
        lives = [{"sent": ts, **self._at[job_id]} for job_id, ts in sent.items()]
        return [float(life[after] - life[before]) for life in lives if before in life and after in life]

    def _take(self, message: Mapping[str, Any]) -> None:
        ts = message["ts"]
        for order in message.get("orders", ()):
            for job_id in order.get("jobs", ()):
                self.note(job_id, "in line", ts)
        for record in message.get("records", ()):
            kind = record["kind"]
            if kind == "job_queued":
                self.note(record["job_id"], "queued", ts)
                self.fact_of[record["job_id"]] = message["facts"][record["fact"]]["seq"]
            elif kind in ("allocated", "finished"):
                self.note(record["job_id"], "allocated" if kind == "allocated" else "ended", ts)
            elif kind in OF_RUNS and not record.get("ranks"):
                self.note(record["run_id"].rpartition("-")[0], OF_RUNS[kind], ts)


def _cell(took: list[float]) -> str:
    return f"{percentile(took, 50):.0f} / {percentile(took, 99):.0f}" if took else "-"
