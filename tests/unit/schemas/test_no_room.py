"""Reasons as people read them: a lack of room by what is needed and how near the best node comes."""

import pytest

from tessera_schemas.reasons import Code, PublicReason, Reason

SHORT = {"nodes": 2, "nodes_short_of_gpu": 2, "pods": 1, "pods_placed": 0, "gpus_wanted": 8}


def no_fit(**numbers: int) -> Reason:
    return Reason(code=Code.NO_FIT, field="roles.worker", numbers=numbers)


@pytest.mark.parametrize(
    ("numbers", "brief"),
    [
        ({"most_gpus_free_on_a_node": 3}, "needs a node with 8 free GPUs; the best has 3"),
        (
            {"most_gpus_free_on_a_node": 3, "pods": 2},
            "needs room for 2 pods, each on a node with 8 free GPUs; the best has 3",
        ),
        (
            {"most_gpus_free_on_a_node": 8, "pods": 3, "pods_placed": 1},
            "needs room for 3 pods of 8 GPUs; there is room for 1",
        ),
        ({"most_gpus_free_on_a_node": 8}, "no node has room for it now"),
        ({}, "no node has room for it now"),
    ],
    ids=["one pod", "several pods", "room for some", "another lack than of GPUs", "without GPUs"],
)
def test_a_lack_of_room_says_what_is_needed_and_how_near_the_best_node_comes(
    numbers: dict[str, int], brief: str
) -> None:
    assert no_fit(**SHORT | numbers).brief() == brief


def test_the_sentence_says_every_number_once() -> None:
    whole = no_fit(**SHORT, most_gpus_free_on_a_node=3, gpus_held_by_pods_not_of_tessera=4)
    assert whole.sentence() == (
        "NoFit: roles.worker: no node has room for it now; needs a node with 8 free GPUs; the best has 3; "
        "of 2 nodes 2 short of gpu (gpus held by pods not of tessera 4)"
    )


def test_what_no_node_could_ever_hold_is_said_in_words_and_not_in_a_row_of_numbers() -> None:
    numbers = {"gpus_wanted": 1, "largest_cpu_milli": 0, "largest_gpus": 0, "largest_memory_bytes": 0, "pods": 1}
    numbers |= {"pods_placed": 0, "most_gpus_free_on_a_node": 0, "nodes": 4, "nodes_other_gpu_model": 4}
    never = Reason(
        code=Code.INADMISSIBLE, field="roles.worker", numbers=numbers, detail="no node satisfies its GPU model"
    )
    assert never.sentence() == (
        "Inadmissible: roles.worker: no node could ever hold it; of 4 nodes 4 other gpu model "
        "(no node satisfies its GPU model; gpus wanted 1)"
    )


def test_other_reasons_are_brief_by_what_their_code_says() -> None:
    full = PublicReason(code="WaitingForQuota", numbers={"used": 8}, detail="8 of 8")
    assert full.brief() == "its queue's quota is used up"
    assert PublicReason(code="OfALaterVersion").brief() == "a reason that this version does not know"
