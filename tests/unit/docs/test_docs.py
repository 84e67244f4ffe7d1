"""What the documents say is there is there: examples, commands, targets, links, services, streams."""

import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import typer
import yaml

from docs import make_tables
from tessera.admission.decide.configuration import find_config_faults
from tessera.client.cli import app
from tessera.client.cluster import applying
from tessera.client.commands.slurm_words.sbatch import IMAGE_VARIABLE
from tessera.client.connect.contexts import API_VARIABLE, TOKEN_FILE_VARIABLE, TOKEN_VARIABLE
from tessera.client.input import files
from tessera.client.slurm import steps
from tessera.client.slurm.scripts.options import OPTIONS
from tessera.kernel.process.settings import CONFIG_FILE_VARIABLE, ServiceSettings
from tessera_schemas.commands import SubmitJob
from tessera_schemas.shard.services import SERVICES
from tessera_schemas.text.reading import read_tenant_command

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "docs" / "examples"
README = (ROOT / "README.md").read_text()
SHOWN_FILES = sorted(path for path in EXAMPLES.rglob("*") if path.is_file())
PAGES = sorted(page for top in ("", "docs/**/", "deploy/**/", "services/**/") for page in ROOT.glob(f"{top}*.md"))
SHOWN = ("submit.py", "subscribe.py", "github-actions.yml", "gitlab-ci.yml")
CODE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\((?!https?://)([^)#]*)(?:#([^)]*))?\)")
# The images' own directory is no path of one machine.
MACHINE_PATH = re.compile(r"(?<![\w.])/(?!var/lib/tessera)(?:home|root|tmp|work|Users|opt|var|usr)/\w")

page_by_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def code_of(page: Path) -> Iterator[str]:
    """Every line of code blocks, and every inline code."""
    text = page.read_text()
    for match in CODE.finditer(text):
        yield from match[2].splitlines()
    yield from INLINE.findall(CODE.sub("", text))


def heading_anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def commands_in(page: Path) -> list[list[str]]:
    """Each use of the `tessera` command, as words after it, up to a comment."""
    found = []
    for line in code_of(page):
        match = re.search(r"(?:^|[\s/])tessera ([a-z][^#|]*)", line.split(" #")[0])
        if match and "=" not in match[1].split()[0]:
            found.append(match[1].split())
    return found


@pytest.mark.parametrize("name", SHOWN)
def test_an_example_stands_in_the_readme_word_for_word(name: str) -> None:
    assert (EXAMPLES / name).read_text() in [match[2] for match in CODE.finditer(README)]


@pytest.mark.parametrize("name", ["submit.py", "subscribe.py"])
def test_the_sdk_needs_fewer_than_ten_lines(name: str) -> None:
    assert len([line for line in (EXAMPLES / name).read_text().splitlines() if line]) < 10


def test_the_example_configuration_asks_for_nothing_that_is_not_honoured() -> None:
    body = applying.read_body(files.config_body(files.read_yaml(EXAMPLES / "config.yaml"), "config.yaml"))
    assert find_config_faults(body) == []
    assert "allocations" in [subscriber.name for tenant in body.tenants for subscriber in tenant.subscribers]


@pytest.mark.parametrize("name", ["job.yaml", "training.yaml"])
def test_the_example_job_reads_as_admission_reads_it(name: str) -> None:
    spec = files.job_spec(files.read_yaml(EXAMPLES / name), name)
    command = {"kind": "submit_job", "v": 1, "key": "k", "spec": spec}
    assert isinstance(read_tenant_command(orjson.dumps(command)).command, SubmitJob)


@pytest.mark.parametrize("name", ["github-actions.yml", "gitlab-ci.yml"])
def test_the_ci_examples_are_yaml_that_submits(name: str) -> None:
    assert "tessera submit -f job.yaml --wait" in str(yaml.safe_load((EXAMPLES / name).read_text()))


ELSEWHERE = {API_VARIABLE, TOKEN_VARIABLE, TOKEN_FILE_VARIABLE, IMAGE_VARIABLE, CONFIG_FILE_VARIABLE}


@page_by_page
def test_every_command_that_a_page_names_exists_with_its_options(page: Path) -> None:
    for words in commands_in(page):
        command: Any = typer.main.get_command(app)
        while words and (subcommands := getattr(command, "commands", None)):
            word = words.pop(0)
            assert word in subcommands, f"tessera {word}"
            command = subcommands[word]
        known = {option for param in command.params for option in param.opts}
        if command.name == "sbatch":
            known |= {spelling for each in OPTIONS for spelling in (f"--{each.name}", f"-{each.short}")}
        if command.name == "srun":
            known |= {f"--{name}" for name in steps.OPTIONS}
        given = {word.split("=")[0] for word in words[: words.index("--") if "--" in words else None] if word[0] == "-"}
        given = {option for word in given for option in _parted(word, known)}
        assert given <= known, f"{command.name}: {given - known}"


def _parted(word: str, known: set[str]) -> set[str]:
    """The options of a word such as `-it`, which stands for `-i -t` where both are there; else the word."""
    parts = {f"-{letter}" for letter in word[1:]}
    return parts if parts <= known else {word}


@page_by_page
def test_every_make_target_that_a_page_names_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {match[1] for line in code_of(page) if (match := re.match(r"\s*make ([a-z-]+)", line))}
    assert named <= targets


@page_by_page
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for path, anchor in LINK.findall(page.read_text()):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), path
        if anchor:
            assert anchor in heading_anchors(target), anchor


@page_by_page
def test_every_file_of_the_project_that_a_page_names_exists(page: Path) -> None:
    for code in code_of(page):
        for path in re.findall(r"(?<![\w./-])((?:tests|docs|schemas|services|tessera)/[\w./-]+)", code):
            assert any((base / path).exists() for base in (ROOT, ROOT / "services")), path


@page_by_page
def test_every_module_of_the_domain_and_the_contract_that_a_page_names_exists(page: Path) -> None:
    if page.parent.name == "adr" or page.name == "CHANGELOG.md":
        return  # these name what was there at their time
    for code in code_of(page):
        for name in re.findall(r"(?<![\w./-])((?:tessera_schemas|tessera\.domain)(?:\.[a-z_]+)+)", code):
            assert pkgutil.resolve_name(name), name  # a module, or what one defines


@page_by_page
def test_every_setting_that_a_page_names_exists(page: Path) -> None:
    for service in SERVICES:
        importlib.import_module(f"tessera.{service}.settings")
    shown = [ServiceSettings, *(model for model in ServiceSettings.__subclasses__() if model.service in SERVICES)]
    known = {f"TESSERA_{name}".upper() for model in shown for name in model.model_fields}
    pods = ("decide/containers.py", "launchers/steps.py", "launchers/session_address.py")
    made = "".join((ROOT / "services/tessera/binder" / name).read_text() for name in pods)
    told = {name.rstrip("_") for name in re.findall(r'"(TESSERA_[A-Z_]+)"', made)}
    told |= set(re.findall(r"\$\{(TESSERA_[A-Z_]+)", (ROOT / "docker-compose.yml").read_text()))
    named = set(re.findall(r"TESSERA_[A-Z_]*[A-Z]", page.read_text()))
    # Besides settings: variables of pods and of compose, a CI secret, those of the client, the directory of traces.
    assert named - known - told <= {"TESSERA_CREDENTIALS", "TESSERA_HOME", "TESSERA_DATA", *ELSEWHERE}


@page_by_page
def test_no_page_uses_an_option_of_curl_that_long_supported_systems_lack(page: Path) -> None:
    lacking = ("--json", "--variable", "--expand-", "--fail-with-body")
    assert [line for line in code_of(page) if "curl " in line and any(option in line for option in lacking)] == []


@pytest.mark.parametrize("page", [*PAGES, *SHOWN_FILES], ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_names_a_path_of_one_machine(page: Path) -> None:
    assert not MACHINE_PATH.search(page.read_text())


def test_every_service_has_its_chapter() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    assert sorted(re.findall(r"^### (\w+)$", text, re.MULTILINE)) == sorted(SERVICES)


def test_what_is_made_from_the_code_stands_in_the_pages_as_it_is_made() -> None:
    assert {page for page, text in make_tables.files().items() if (ROOT / page).read_text() != text} == set()


def test_every_decision_says_what_would_prove_it_wrong() -> None:
    parts = ("Context", "Decision", "Non-goals", "Alternatives", "Consequences", "What would prove it wrong")
    for page in sorted((ROOT / "docs" / "adr").glob("[0-9]*.md")):
        assert re.findall(r"^\*\*([^*]+?)\.\*\*", page.read_text(), re.MULTILINE) == list(parts), page.name


def test_the_numbers_of_decisions_rise_by_one() -> None:
    names = sorted(page.name for page in (ROOT / "docs" / "adr").glob("[0-9]*.md"))
    assert [int(name[:4]) for name in names] == list(range(1, len(names) + 1))


def test_every_field_of_a_reference_has_a_meaning() -> None:
    for page in ("job", "configuration", "settings"):
        rows = [line for line in (ROOT / "docs/reference" / f"{page}.md").read_text().splitlines() if line[:3] == "| `"]
        assert len(rows) > 80, page
        assert [row for row in rows if row.endswith("|  |")] == []


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    linked = {(ROOT / "docs" / path).resolve() for path, _ in LINK.findall(index) if path}
    pages = {page for folder in ("docs", "docs/reference", "docs/research") for page in (ROOT / folder).glob("*.md")}
    assert pages - linked == {ROOT / "docs" / "README.md"}
