"""Facts about devices that drivers publish (DRA): layouts, classes, and what selectors take of them."""

from tessera.domain.devices.offers import DeviceClass, KnownSelection, selection_key
from tessera.scheduler.decide.draft import Draft, judges
from tessera_schemas.facts import ClassSeen, DevicesSelected, LayoutSeen
from tessera_schemas.ledger import DevicesNoted

LAYOUTS_MAX, CLASSES_MAX, SELECTIONS_MAX = 1_024, 1_024, 8_192
"""What the state keeps of each; beyond, nothing more is taken in, and nodes of further layouts have no such devices."""


@judges(LayoutSeen)
def on_layout_seen(draft: Draft, index: int, fact: LayoutSeen) -> None:
    """Records a layout that is not known."""
    state = draft.state
    if state.layouts.get(fact.layout.digest()) is None and len(state.layouts) < LAYOUTS_MAX:
        draft.add(DevicesNoted(kind="devices_noted", fact=index))


@judges(ClassSeen)
def on_class_seen(draft: Draft, index: int, fact: ClassSeen) -> None:
    """Records a class that is new, another one than before, or gone."""
    known = draft.state.device_classes.get(fact.name)
    now = None if fact.gone else DeviceClass(fact.name, fact.selectors, fact.extended_resource)
    if known != now and (known is not None or len(draft.state.device_classes) < CLASSES_MAX):
        draft.add(DevicesNoted(kind="devices_noted", fact=index))


@judges(DevicesSelected)
def on_devices_selected(draft: Draft, index: int, fact: DevicesSelected) -> None:
    """Records what expressions take of a layout that is known."""
    state, key = draft.state, selection_key(fact.layout, fact.selectors)
    known = state.selections.get(key)
    if state.layouts.get(fact.layout) is None or known == KnownSelection(key, fact.devices, fact.error):
        return
    if known is not None or len(state.selections) < SELECTIONS_MAX:
        draft.add(DevicesNoted(kind="devices_noted", fact=index))
