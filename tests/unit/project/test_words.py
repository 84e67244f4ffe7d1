"""One word for one thing: names that the glossary replaced do not come back."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
GLOSSARY = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
CLASSES = {
    "Asking": "Requester",
    "Auction": "PricingProblem",
    "Bay": "a timeline of nodes",
    "Book": "an index, or what it is a list of",
    "Extra": "SurplusPod",
    "Ground": "TargetCapacity",
    "Lanes": "buckets",
    "Left": "PublishedSlots, free slots",
    "Lesson": "PricingProblem",
    "Loss": "Candidate",
    "Losses": "LostRuns",
    "Market": "PricingProblem",
    "Miss": "FitFailure",
    "Part": "BundleSet",
    "Places": "FeasibleNodes, QueuePositions",
    "Rehearsal": "FillingTerms",
    "Room": "FreeCapacity, CheckedNodes",
    "Rooms": "BundleCounts",
    "Unit": "PlacementGroup",
    "Valued": "PriceAware",
}
FUNCTIONS = {
    "ask_aside": "call_subprocess",
    "auction": "update_prices",
    "beside": "a verb: hide_reserved, exclude_cut_cards",
    "evolved": "replace",
    "giver": "a verb",
    "hear": "receive, notify",
    "heard": "receive, notify",
    "losses": "find_candidates",
    "lots_of": "make_batches",
    "meant": "a verb",
    "quick": "fast_init",
    "rehearse": "choose_prices",
    "remedies": "suggest_changes",
    "reserved": "make_reservation",
    "said": "describe, format_*",
    "say": "notify, record, publish, report",
    "soonest": "find_opening",
    "taste": "score",
    "tell": "notify, record, publish, report",
    "told": "a verb for what the function makes",
    "together": "run_loops, gather_all",
}
WORDS = (
    "blocked head",
    "blocker",
    "candidate",
    "counted attempt",
    "dual-price solver",
    "feasible nodes",
    "fit failure",
    "free capacity",
    "free slots",
    "has finalizer",
    "job command",
    "leading",
    "on hold",
    "placement group",
    "pricing problem",
    "queue order",
    "relocation",
    "reprieve",
    "reservation",
    "scheduling pass",
    "score",
    "simulated filling",
    "suggestion",
    "surplus pods",
    "suspended",
    "target capacity",
    "victim search",
    "viewer",
    "what-if",
)


def names(*kinds: type[ast.AST]) -> Iterator[tuple[str, str]]:
    """Where something of these kinds is defined, and its name."""
    for root in ("services", "schemas"):
        for path in sorted((ROOT / root).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, kinds):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", node.name.lstrip("_")  # type: ignore[attr-defined]


def test_no_class_has_a_name_that_the_glossary_replaced():
    assert {where: CLASSES[name] for where, name in names(ast.ClassDef) if name in CLASSES} == {}


def test_no_function_has_a_name_that_the_glossary_replaced():
    found = names(ast.FunctionDef, ast.AsyncFunctionDef)
    assert {where: FUNCTIONS[name] for where, name in found if name in FUNCTIONS} == {}


def test_no_function_begins_with_of():
    found = names(ast.FunctionDef, ast.AsyncFunctionDef)
    assert {where: name for where, name in found if name.startswith("of_")} == {}


@pytest.mark.parametrize("word", WORDS)
def test_the_glossary_has_the_word(word: str):
    terms = [line.split("|")[1] for line in GLOSSARY.splitlines() if line.startswith("| ")]
    assert word in {term.strip() for row in terms for term in row.split(",")}
