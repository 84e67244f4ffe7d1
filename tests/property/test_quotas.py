"""
Quotas of any small tree, against a second arithmetic: what is available, what limits hold, and that lent quota returns.

The second arithmetic is the rules checker's, which shares no code with the first.
"""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.domain.devices.resources import Amount
from tessera.domain.queues import QuotaBook, queue_tree
from tessera.testkit.rules_checker.quotas import Quotas
from tessera_schemas.config import Config, ConfigBody, Queue
from tests.builders import config_body

GPU = ("", "gpu_milli")
MOST = 40  # more than any small tree has


@dataclass(frozen=True)
class Shared:
    """A tree, and what each leaf holds: within limits or, as after a lowered quota, not."""

    body: ConfigBody
    held: dict[str, int]

    @property
    def book(self) -> QuotaBook:
        held = {name: Amount(gpu_milli=count) for name, count in self.held.items()}
        return QuotaBook(queue_tree(Config(version=1, body=self.body)), held)

    def allows(self, queue: str, more: int) -> bool:
        """The checker's word."""
        quotas = Quotas()
        quotas.configure(self.body, {})
        for name, count in self.held.items():
            quotas.add(name, "", {"gpu_milli": count})
        quotas.add(queue, "", {"gpu_milli": more})
        return not list(quotas.over(queue, "", {"gpu_milli": more}))


@st.composite
def shared(draw: st.DrawFn) -> Shared:
    """Up to six queues in up to three levels; a parent comes before its children."""
    queues = [Queue(name="q0", quotas=draw(quotas(limits=False)))]
    for number in range(1, draw(st.integers(2, 6))):
        parent = f"q{draw(st.integers(0, min(number - 1, 2)))}"
        queues.append(Queue(name=f"q{number}", parent=parent, quotas=draw(quotas(limits=True))))
    parents = {queue.parent for queue in queues}
    leaves = [queue.name for queue in queues if queue.name not in parents]
    return Shared(config_body(*queues), {name: draw(st.integers(0, 6)) for name in leaves})


@st.composite
def quotas(draw: st.DrawFn, limits: bool) -> tuple[dict[str, object], ...]:
    if draw(st.integers(0, 5)) == 0:
        return ()
    bounds = st.none() | st.integers(0, 4)
    more = {"borrowing_limit": draw(bounds), "lending_limit": draw(bounds)} if limits else {}
    return ({"resource": "gpu_milli", "nominal": draw(st.integers(0, 6)), **more},)


def covered(case: Shared) -> bool:
    return any(queue.quotas for queue in case.body.queues)


@settings(max_examples=300, deadline=None)
@given(shared())
def test_what_is_available_is_the_most_that_breaks_no_limit(case: Shared) -> None:
    for queue in case.held if covered(case) else ():
        most = max((more for more in range(1, MOST) if case.allows(queue, more)), default=0)
        assert max(0, case.book.available(queue, GPU)) == most, queue
        for more in (most, most + 1):
            over = case.book.over(queue, "", Amount(gpu_milli=more))
            assert (over is None) == (more == 0 or case.allows(queue, more))


@settings(max_examples=300, deadline=None)
@given(shared(), st.integers(0, 5))
def test_lent_quota_returns_once_those_who_hold_it_have_given_it_back(case: Shared, which: int) -> None:
    """However much others were lent: evicting them, as the rules of reclaim allow, gives an owner its nominal quota."""
    names = sorted(case.held)
    owner = names[which % len(names)]
    tree = queue_tree(Config(version=1, body=case.body))
    quota = tree.quotas[owner].get(GPU)
    wanted = Amount(gpu_milli=(quota.nominal if quota else 0) - case.held[owner])
    if wanted.gpu_milli <= 0:
        return
    book, held, above = case.book, dict(case.held), set(tree.path(owner))
    while book.over(owner, "", wanted) is not None:
        victims = [
            name
            for name in names
            if name != owner
            and held[name]
            and all(book.holds_lent(q, "", wanted) for q in tree.path(name) if q not in above)
        ]
        assert victims, "nobody holds what was lent, and still it is not there"
        held[victims[0]] -= 1
        book.add(victims[0], "", Amount(gpu_milli=1), -1)
    assert held[owner] == case.held[owner]


@settings(max_examples=200, deadline=None)
@given(shared(), st.lists(st.tuples(st.integers(0, 5), st.integers(1, 3)), max_size=12))
def test_a_book_that_is_added_to_says_what_a_new_one_says(case: Shared, steps: list[tuple[int, int]]) -> None:
    book, held, names = case.book, dict(case.held), sorted(case.held)
    for which, count in steps:
        name = names[which % len(names)]
        sign = -1 if held[name] >= count else 1
        held[name] += sign * count
        book.add(name, "", Amount(gpu_milli=count), sign)
        fresh = Shared(case.body, held).book
        for queue in case.body.queues:
            assert (book.used(queue.name, GPU), book.available(queue.name, GPU), book.most(queue.name, GPU)) == (
                fresh.used(queue.name, GPU), fresh.available(queue.name, GPU), fresh.most(queue.name, GPU),
            )  # fmt: skip
