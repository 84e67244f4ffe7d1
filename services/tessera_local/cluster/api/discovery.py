"""
Lists of what the simulated cluster serves, by which kubectl finds out how a kind's paths are written, and that the
server checks the fields of what is created: without a word on that kubectl sends nothing.
"""

from tessera_local.cluster.objects.store import KINDS, WITHOUT_NAMESPACE
from tessera_schemas.base import Json

SHORT_NAMES = {"pods": ["po"], "nodes": ["no"], "services": ["svc"], "events": ["ev"], "poddisruptionbudgets": ["pdb"]}
_VERBS = ["create", "delete", "get", "list", "patch", "watch"]


def discovered(path: str) -> Json | None:
    """Answer to a path of discovery; None for any other path."""
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(name) for name in _groups()]}
    if path == "/openapi/v3":
        versions = sorted({version for version, _ in KINDS.values()})
        return {"paths": {_root(one): {"serverRelativeURL": f"/openapi/v3/{_root(one)}"} for one in versions}}
    if path.startswith("/openapi/v3/"):
        return _documented(path.removeprefix("/openapi/v3/"))
    root, _, version = path.strip("/").partition("/")
    served = version in {api_version for api_version, _ in KINDS.values()}
    if not served or root != ("apis" if "/" in version else "api"):
        return None
    resources = [_resource(name) for name, (api_version, _) in KINDS.items() if api_version == version]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources}


def _root(version: str) -> str:
    return f"apis/{version}" if "/" in version else f"api/{version}"


def _documented(root: str) -> Json | None:
    """The one thing that kubectl looks for in a version's OpenAPI document: `fieldValidation` of a patch, by kind."""
    paths: Json = {}
    for name, (version, kind) in KINDS.items():
        if _root(version) == root:
            group, _, number = version.rpartition("/")
            patch = {
                "parameters": [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}],
                "x-kubernetes-group-version-kind": {"group": group, "version": number, "kind": kind},
                "responses": {},
            }
            paths[f"/{root}/{name.partition('.')[0]}/{{name}}"] = {"patch": patch}
    info = {"title": "simulated cluster", "version": "1"}
    return {"openapi": "3.0.0", "info": info, "paths": paths} if paths else None


def _groups() -> list[str]:
    return sorted({version for version, _ in KINDS.values() if "/" in version})


def _group(group_version: str) -> Json:
    group, _, version = group_version.partition("/")
    one = {"groupVersion": group_version, "version": version}
    return {"name": group, "versions": [one], "preferredVersion": one}


def _resource(name: str) -> Json:
    plural, _, _ = name.partition(".")
    kind = KINDS[name][1]
    return {
        "name": plural,
        "singularName": kind.lower(),
        "kind": kind,
        "namespaced": name not in WITHOUT_NAMESPACE,
        "shortNames": SHORT_NAMES.get(name, []),
        "verbs": _VERBS,
    }
