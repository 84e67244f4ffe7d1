"""The alarms: rules, the table that an operator reads and the metrics that there are say the same."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tessera.kernel.service.metrics import COUNTED_EVENTS
from tests.unit.project.watched import FOREIGN, asked, exported

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
PAGE = (ROOT / "docs" / "operations.md").read_text()
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"] for rule in group["rules"]
]
NAMES = [rule["alert"] for rule in RULES]

with_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="no promtool on the path: `make prometheus` installs it",
)
rule_by_rule = pytest.mark.parametrize("rule", RULES, ids=NAMES)


def promtool(*words: str) -> None:
    done = subprocess.run(["promtool", *words], capture_output=True, text=True, timeout=240)
    assert not done.returncode, done.stdout + done.stderr


@with_promtool
def test_promtool_reads_the_rules() -> None:
    promtool("check", "rules", str(DEPLOY / "alerts.yaml"))


@with_promtool
def test_each_alarm_rings_on_one_side_of_its_threshold_and_not_on_the_other() -> None:
    promtool("test", "rules", str(DEPLOY / "alerts_test.yaml"))


@with_promtool
def test_promtool_reads_the_example_configuration(tmp_path: Path) -> None:
    """Debian's build cannot ask Kubernetes for targets; the rest of the job is read."""
    configuration = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text())
    for job in configuration["scrape_configs"]:
        assert job.pop("kubernetes_sd_configs") == [{"role": "pod"}]
    shutil.copy(DEPLOY / "alerts.yaml", tmp_path)
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(configuration))
    promtool("check", "config", str(tmp_path / "prometheus.yaml"))


def test_each_row_of_alarms_has_a_rule_and_each_rule_a_row() -> None:
    section = PAGE.split("\n## Alarms\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.*?) \|", section, re.MULTILINE)[1:]
    named = [re.fullmatch(r'<a id="(\w+)"></a>`(\w+)`', row) for row in rows]
    assert all(named), rows
    assert sorted(match[1] for match in named if match) == sorted(NAMES)
    assert all(match[1] == match[2] for match in named if match)


@rule_by_rule
def test_a_rule_says_how_bad_it_is_what_is_the_matter_and_where_to_read_on(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    page, anchor = rule["annotations"]["runbook"].split("#")
    assert f'<a id="{anchor}"></a>' in (ROOT / page).read_text()
    assert anchor == rule["alert"]


@rule_by_rule
def test_a_rule_names_only_metrics_that_there_are(rule: dict[str, Any]) -> None:
    names = asked(rule["expr"])
    assert names
    assert names <= exported() | FOREIGN


def test_every_log_line_that_a_rule_stands_on_is_counted_and_there_is_no_other() -> None:
    on_logs = " ".join(rule["expr"] for rule in RULES if "tessera_log_events_total" in rule["expr"])
    named = {name for match in re.findall(r'event=~?"([^"]+)"', on_logs) for name in match.split("|")}
    assert named == set(COUNTED_EVENTS)


@pytest.mark.parametrize("event", COUNTED_EVENTS)
def test_a_log_line_that_is_counted_is_written_somewhere(event: str) -> None:
    lines = [line for path in (ROOT / "services").rglob("*.py") for line in path.read_text().splitlines()]
    assert any(f'"{event}"' in line and "log." in line for line in lines)


@rule_by_rule
def test_a_rule_is_seen_to_ring_and_to_be_silent(rule: dict[str, Any]) -> None:
    tests = yaml.safe_load((DEPLOY / "alerts_test.yaml").read_text())["tests"]
    rings = [test for test in tests if f'alertname="{rule["alert"]}"' in str(test["promql_expr_test"])]
    assert rings
    assert any(not look["exp_samples"] for test in rings for look in test["promql_expr_test"])
