"""The dashboards are those that the code makes, and ask for no metric that nobody exports."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.unit.project.watched import FOREIGN, asked, exported

ROOT = Path(__file__).parents[3]
PAGES = {path.stem: json.loads(path.read_text()) for path in (ROOT / "deploy" / "dashboards").glob("*.json")}
PANELS = [
    pytest.param(panel, id=f"{name}: {panel['title']}") for name, page in PAGES.items() for panel in page["panels"]
]


def test_they_are_those_that_the_code_makes() -> None:
    pytest.importorskip("grafana_foundation_sdk", reason="not in this environment: `make setup`")
    from deploy.make_dashboards import PAGES as MADE
    from deploy.make_dashboards import page

    stored = {path.stem: path.read_text() for path in (ROOT / "deploy" / "dashboards").glob("*.json")}
    assert {name: page(name, panels) for name, panels in MADE.items()} == stored, "make dashboards"


@pytest.mark.parametrize("name", PAGES)
def test_grafanas_own_library_reads_every_field_of_a_page(name: str) -> None:
    pytest.importorskip("grafana_foundation_sdk", reason="not in this environment: `make setup`")
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    assert json.loads(JSONEncoder().encode(Dashboard.from_json(PAGES[name]))) == PAGES[name]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool on the path: `make prometheus` installs it")
def test_prometheus_reads_every_query(tmp_path: Path) -> None:
    asked_for = [target["expr"] for page in PAGES.values() for panel in page["panels"] for target in panel["targets"]]
    filled = [re.sub(r"\$__(rate_)?interval", "5m", query) for query in asked_for]
    rules = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(filled)]
    (tmp_path / "rules.yaml").write_text(json.dumps({"groups": [{"name": "dashboards", "rules": rules}]}))
    words = ["promtool", "check", "rules", str(tmp_path / "rules.yaml")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240)
    assert f"SUCCESS: {len(rules)} rules found" in done.stdout, done.stdout + done.stderr


def test_there_is_one_each_of_cluster_shard_service_and_tenant() -> None:
    assert set(PAGES) == {"cluster", "shard", "service", "tenant"}
    assert len({page["uid"] for page in PAGES.values()}) == len(PAGES)


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_asks_for_metrics_that_there_are_and_says_what_it_shows(panel: dict[str, Any]) -> None:
    assert panel["description"].endswith(".")
    assert panel["targets"]
    for target in panel["targets"]:
        names = asked(target["expr"])
        assert names
        assert names <= exported() | FOREIGN
        assert all('shard=~"$shard"' in labels for labels in re.findall(r"\{([^}]*)\}", target["expr"]))
