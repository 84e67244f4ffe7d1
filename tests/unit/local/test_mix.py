"""The production mix: its figures against the trace, and what is drawn from it."""

import os
from pathlib import Path
from random import Random

import pytest

from tessera_local.production_mix import (
    DATA_VARIABLE,
    DEFAULT_DATA,
    FIGURES,
    GANG_PODS,
    TRACE_FILES,
    find_mix,
    read_mix,
)

MIX = read_mix(*FIGURES, "figures")


def trace_folder() -> Path | None:
    named = os.environ.get(DATA_VARIABLE)
    places = [*([Path(named)] if named else []), DEFAULT_DATA]
    return next((place for place in places if all((place / file).exists() for file in TRACE_FILES)), None)


def test_the_figures_kept_in_the_project_are_those_of_the_trace() -> None:
    folder = trace_folder()
    if folder is None:
        pytest.skip(f"the trace is not here: no {TRACE_FILES[0]} below ${DATA_VARIABLE} or {DEFAULT_DATA}")
    trace = read_mix(*(folder / file for file in TRACE_FILES), "trace")
    assert (trace.pods, trace.nodes) == (MIX.pods, MIX.nodes)


def test_the_figures_are_small_and_name_their_source() -> None:
    for path in FIGURES:
        text = path.read_text()
        assert len(text) < 10_000
        assert "cluster-trace-gpu-v2023" in text
    assert sum(MIX.pods.values()) == 8152
    assert sum(MIX.nodes.values()) == 1213


def test_the_same_seed_draws_the_same_and_another_seed_something_else() -> None:
    def drawn(seed: int) -> tuple[object, ...]:
        random = Random(seed)
        return tuple(MIX.draw_nodes(random, 40)), tuple(MIX.draw_jobs(random, 200, "research"))

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_figures_and_a_trace_in_another_order_draw_the_same(tmp_path: Path) -> None:
    pods, nodes = (tmp_path / file for file in TRACE_FILES)
    pods.parent.mkdir()
    lines = ["1,8000,30517,1,470,", "2,12000,16384,1,1000,", "1,4000,8192,0,0,"]
    header = "count,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec"
    pods.write_text("\n".join([header.removeprefix("count,"), *(line[2:] for line in [*lines, lines[1]][::-1])]))
    nodes.write_text("cpu_milli,memory_mib,gpu,model\n96000,393216,8,G2\n")
    figures = tmp_path / "figures.csv"
    figures.write_text("\n".join(["# a comment", header, *lines]))
    trace = find_mix({DATA_VARIABLE: str(tmp_path)}, Path("/nowhere"))
    same = read_mix(figures, nodes, "figures")
    assert trace.draw_jobs(Random(7), 50, "research") == same.draw_jobs(Random(7), 50, "research")


def test_without_the_trace_the_figures_serve(tmp_path: Path) -> None:
    assert find_mix({}, tmp_path).pods == MIX.pods


def test_about_one_job_in_ten_is_a_gang_of_pods_with_whole_gpus() -> None:
    jobs = MIX.draw_jobs(Random(3), 2000, "research")
    gangs = [job.roles[0] for job in jobs if job.roles[0].replicas > 1]
    assert 150 < len(gangs) < 250
    assert {role.replicas for role in gangs} == set(GANG_PODS)
    assert all(role.resources.gpus for role in gangs)


def test_names_of_nodes_and_jobs_are_unique() -> None:
    nodes, jobs = MIX.draw_nodes(Random(1), 120), MIX.draw_jobs(Random(1), 1200, "research")
    assert len({node.name for node in nodes}) == 120
    assert len({job.name for job in jobs}) == 1200
