"""What an explanation says to whom: one's own names, and no other tenant's."""

from tessera.gateway.reading.explaining import KEPT_MAX, KeptAnswers, explained, hide_other_tenants, list_positions
from tests.builders import admitted, job_spec, role
from tests.ledgers import Committed
from tests.virtual_time import VirtualClock

MINE, THEIRS = admitted("k1", tenant="lab").job_id, admitted("k1", tenant="other").job_id


def told(tenant: str | None, text: str) -> str:
    committed = Committed().begin()
    committed.commit(admitted("k1", tenant="lab"), admitted("k1", tenant="other"))
    return hide_other_tenants(tenant, text, committed.state)


def test_another_tenants_job_run_and_queue_are_taken_out() -> None:
    text = f"8 GPUs are held by {THEIRS}-12 (queue secret) and {THEIRS}"
    assert told("lab", text) == "8 GPUs are held by another tenant and another tenant"


def test_another_tenants_job_that_has_ended_is_taken_out_too() -> None:
    committed = Committed().begin()
    theirs = admitted("k1", tenant="other")
    committed.commit(theirs)
    committed.end(theirs.job_id, "k1")
    assert committed.state.ended.get(theirs.job_id) is not None
    assert hide_other_tenants("lab", f"after {THEIRS}", committed.state) == "after another tenant"


def test_ones_own_stay_and_an_operator_reads_all() -> None:
    text = f"1 GPU is held by {MINE}-1 (queue research), 8 by {THEIRS}-2 (queue secret)"
    assert told("lab", text) == f"1 GPU is held by {MINE}-1 (queue research), 8 by another tenant"
    assert told(None, text) == text


def test_words_that_only_look_like_a_job_stay() -> None:
    text = "queue abcdefghijklmnopqrst has no room"
    assert told("lab", text) == text


def test_an_explanation_names_no_job_of_another_tenant_even_by_the_name_it_was_given() -> None:
    committed = Committed().begin()
    committed.commit(admitted("k1", job_spec(role(replicas=2, gpus=8), name="secret"), tenant="other"))
    committed.commit(orders=(committed.line(),))
    committed.commit(admitted("k1", job_spec(role(gpus=8)), tenant="lab"))
    committed.commit(orders=(committed.line(),))
    said = told_to(committed, "lab")
    assert "16 GPUs held by 1 other run" in said
    assert "secret" not in said
    assert "secret" in told_to(committed, None)


def told_to(committed: Committed, tenant: str | None) -> str:
    answer = explained(committed.state, MINE, tenant, committed.ts)
    assert answer is not None
    return answer.model_dump_json()


def test_the_line_tells_a_tenant_its_own_jobs_and_of_others_only_place_queue_size_and_wait() -> None:
    committed = Committed().begin()
    for number, tenant in enumerate(("other", "lab")):
        spec = job_spec(role(replicas=3, gpus=8), name=f"secret-of-{tenant}", user="ada")
        committed.commit(admitted(f"k{number}", spec, tenant))
    committed.commit(orders=(committed.line(),))
    theirs, mine = list_positions(committed.state, "default", "lab")
    assert (theirs.position, theirs.queue, theirs.gpu_milli) == (1, "research", 24_000)
    assert "other" not in theirs.model_dump_json()
    assert (mine.position, mine.name, mine.tenant) == (2, "secret-of-lab", "lab")
    assert mine.why.startswith("NoFit")
    assert [place.name for place in list_positions(committed.state, "default", None)] == [
        "secret-of-other",
        "secret-of-lab",
    ]


class Counted:
    """A state's answers as they are kept, with a count of how often each was computed."""

    def __init__(self) -> None:
        self.committed, self.clock, self.computed = Committed().begin(), VirtualClock(), 0
        self._kept = KeptAnswers(self.committed.state, self.clock)

    def ask(self, asked: tuple[str, ...]) -> int:
        return self._kept.of(self._compute, *asked)

    def _compute(self, *_: str) -> int:
        self.computed += 1
        return self.computed


async def test_an_answer_is_computed_once_for_a_record_and_whoever_asks_for_it() -> None:
    answers = Counted()
    assert [answers.ask(("explain", MINE, "lab")) for _ in range(3)] == [1, 1, 1]
    assert answers.ask(("explain", MINE, "other")) == 2  # who sees other names has an answer of its own
    answers.committed.commit(admitted("k1", tenant="lab"))
    assert answers.ask(("explain", MINE, "lab")) == 3
    assert answers.ask(("explain", MINE, "lab")) == 3


async def test_no_answer_is_older_than_a_second() -> None:
    answers = Counted()
    answers.ask(("line",))
    await answers.clock.run(0.9)
    assert answers.ask(("line",)) == 1
    await answers.clock.run(0.2)
    assert answers.ask(("line",)) == 2


async def test_so_many_answers_are_kept_and_no_more() -> None:
    answers = Counted()
    for number in range(KEPT_MAX + 1):
        answers.ask(("explain", str(number)))
    assert answers.ask(("explain", str(KEPT_MAX))) == KEPT_MAX + 1
    assert answers.ask(("explain", "0")) == KEPT_MAX + 2  # the oldest went with all that was kept
