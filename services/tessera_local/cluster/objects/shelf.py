"""The objects of one kind: what is stored, how it is found, and the log of its changes."""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from tessera_local.cluster.api import answers
from tessera_local.cluster.api.selectors import Fields, Selector, fields_of
from tessera_local.cluster.api.watching import Event, WatchLog, WatchReader
from tessera_local.cluster.machines.pod_statuses import in_odd_words
from tessera_schemas.base import Json

REMOVED_MAX = 256
_NO_LABELS: Mapping[str, str] = {}


@dataclass(slots=True, eq=False)
class Version:
    """One object as of one resourceVersion. Shared by store, replies and watchers, hence never changed in place."""

    object: Json
    json: bytes
    key: str

    @property
    def meta(self) -> Json:
        """Metadata of the object, shared: callers that change any of it make a copy first."""
        meta: Json = self.object["metadata"]
        return meta

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels of the object; an empty mapping without any."""
        return self.object["metadata"].get("labels") or _NO_LABELS

    @property
    def uid(self) -> str:
        """UID that the server gave, as text."""
        return str(self.object["metadata"]["uid"])

    @property
    def node(self) -> str:
        """The node a pod is bound to; "" while it is not."""
        return self.object.get("spec", {}).get("nodeName") or ""

    @property
    def phase(self) -> str:
        """Phase in the status; "" for an object that has none."""
        return self.object.get("status", {}).get("phase") or ""

    @property
    def fields(self) -> Fields:
        """Fields that selectors may name, in the order of their names."""
        return fields_of(self.object)

    @property
    def deleting(self) -> bool:
        """True once a deletion has begun: grace or finalizers still keep the object."""
        return "deletionTimestamp" in self.object["metadata"]


class Counter:
    """The one rising resourceVersion of a cluster."""

    def __init__(self) -> None:
        self.last = 1  # never 0: to a watch that means "from anywhere"

    def next(self) -> int:
        """Raise the version by one and return the new one."""
        self.last += 1
        return self.last


def key_of(namespace: str, name: str) -> str:
    """Key of an object: namespace and name, or the name alone of what is in no namespace."""
    return f"{namespace}/{name}" if namespace else name


class Shelf:
    """Pods or nodes by key, by UID, by node and by the labels that lists ask for most."""

    def __init__(
        self,
        kind: str,
        resource: str,
        counter: Counter,
        history: int,
        indexed_labels: tuple[str, ...],
        odd_every: int = 0,
    ) -> None:
        self.kind, self.resource, self._odd_every = kind, resource, odd_every
        self.log = WatchLog(kind, history)
        self._counter = counter
        self._by_key: dict[str, Version] = {}
        self._by_uid: dict[str, Version] = {}
        self._by_node: dict[str, dict[str, None]] = {}
        self._by_label: dict[str, dict[str, dict[str, None]]] = {label: {} for label in indexed_labels}
        self._removed: OrderedDict[str, Version] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_key)

    def get(self, namespace: str, name: str) -> Version | None:
        """Object by name, or None; `namespace` is "" for objects of no namespace."""
        return self._by_key.get(key_of(namespace, name))

    def require(self, namespace: str, name: str) -> Version:
        """Raises ApiError 404."""
        found = self._by_key.get(key_of(namespace, name))
        if found is None:
            raise answers.not_found(self.resource, name)
        return found

    def as_it_was_last(self, namespace: str, name: str) -> Version:
        """Object, or what it was when it was taken off, if that was of late. Raises ApiError 404."""
        return self._removed.get(key_of(namespace, name)) or self.require(namespace, name)

    @property
    def oldest(self) -> Version:
        """Object that was stored first of those still here. Raises StopIteration on an empty shelf."""
        return next(iter(self._by_key.values()))

    def with_uid(self, uid: str) -> Version | None:
        """Object by UID; None once the object is taken off."""
        return self._by_uid.get(uid)

    def on_node(self, node: str) -> list[Version]:
        """Pods that are bound to a node; [] for a node without pods."""
        return [self._by_key[key] for key in self._by_node.get(node, ())]

    def select(self, selector: Selector) -> list[Version]:
        """Objects that the selector matches; cheap when an indexed label is among its equalities."""
        if selector.selects_all:
            return list(self._by_key.values())
        return [found for found in self._candidates(selector) if selector.matches(found.labels, found.fields)]

    def watch(self, resource_version: str, selector: Selector) -> WatchReader:
        """Raises ApiError 400, 410, or 504 for a version that this cluster has not reached."""
        if resource_version in ("", "0"):
            watch = self.log.open(self._counter.last, selector, from_now=True)
            watch.begin_with([found.json for found in self.select(selector)])
            return watch
        if not resource_version.isdecimal():
            raise answers.bad_request(f"invalid resource version {resource_version!r}")
        rv = int(resource_version)
        if rv > self._counter.last:
            raise answers.too_large(rv, self._counter.last)
        return self.log.open(rv, selector, from_now=False)

    def add(self, obj: Json) -> Version:
        """Store a new object, whose metadata may be changed by this call."""
        return self._store("ADDED", obj, None)

    def put_back(self, obj: Json) -> None:
        """Store an object as it was, with its version; a watch does not show it as a change."""
        meta = obj["metadata"]
        version = Version(obj, orjson.dumps(obj), key_of(meta.get("namespace", ""), meta["name"]))
        self._by_key[version.key] = self._by_uid[meta["uid"]] = version
        self._index(version)

    def replace(self, old: Version, obj: Json) -> Version:
        """Store a changed object; its metadata must not be the old one's own."""
        return self._store("MODIFIED", obj, old)

    def remove(self, old: Version) -> None:
        """Take an object off; its last event carries a new version, as the API's do."""
        last = {**old.object, "metadata": dict(old.meta)}
        rv, json = self._stamp(last)
        del self._by_key[old.key], self._by_uid[old.uid]
        self._unindex(old)
        self._removed[old.key] = old
        if len(self._removed) > REMOVED_MAX:
            self._removed.popitem(last=False)
        self.log.append(Event("DELETED", rv, json, None, (old.labels, old.fields)))

    def _store(self, change: str, obj: Json, old: Version | None) -> Version:
        rv, json = self._stamp(obj)
        meta = obj["metadata"]
        new = Version(obj, json, key_of(meta.get("namespace", ""), meta["name"]) if old is None else old.key)
        self._by_key[new.key] = self._by_uid[meta["uid"]] = new
        if old is None or old.node != new.node or old.labels is not new.labels:
            if old is not None:
                self._unindex(old)
            self._index(new)
        if old is None:
            self._removed.pop(new.key, None)
        before = None if old is None else (old.labels, old.fields)
        self.log.append(Event(change, rv, json, (new.labels, new.fields), before))
        return new

    def _stamp(self, obj: Json) -> tuple[int, bytes]:
        rv = self._counter.next()
        obj["metadata"]["resourceVersion"] = str(rv)
        is_odd = self._odd_every and rv % self._odd_every == 0
        return rv, orjson.dumps(in_odd_words(obj) if is_odd else obj)

    def _candidates(self, selector: Selector) -> list[Version]:
        for label, value in selector.equal:
            if label in self._by_label:
                return [self._by_key[key] for key in self._by_label[label].get(value, ())]
        return list(self._by_key.values())

    def _index(self, version: Version) -> None:
        if version.node:
            self._by_node.setdefault(version.node, {})[version.key] = None
        for label, keys in self._by_label.items():
            value = version.labels.get(label)
            if value is not None:
                keys.setdefault(value, {})[version.key] = None

    def _unindex(self, version: Version) -> None:
        if version.node:
            _drop(self._by_node, version.node, version.key)
        for label, keys in self._by_label.items():
            value = version.labels.get(label)
            if value is not None:
                _drop(keys, value, version.key)


def _drop(index: dict[str, dict[str, None]], value: str, key: str) -> None:
    keys = index[value]
    del keys[key]
    if not keys:
        del index[value]
