"""Evidence of a search for devices that found none: how many match a request, and what keeps them from it."""

from dataclasses import dataclass

from tessera.domain.storing.fast import fast_init

TAKEN, UNFIT, LESS_ISOLATED, TAINTED = "taken", "unfit", "less isolated", "tainted by "
"""What keeps a device from a request; the last one is followed by the key of its taint."""


@fast_init
@dataclass(frozen=True, slots=True)
class Shortage:
    """
    Why there are no devices for a request: `matching` devices of the node, less what was `taken`, `tainted` by keys
    that are not borne, `unfit` for the capacity asked for, and `less_isolated` than is asked for, are fewer than
    `count` (0: every one that matches). `choice` is the number of the choice of the request that this is about.

    Where they are enough, they are not together with what else the claims ask for. `unknown`: nobody has said yet what
    the selectors take; `error`: an evaluation of them ended so; `incomplete`: every device is asked for and a pool
    cannot be read; `gave_up`: the search took too many steps. `networked` are those of the devices that other nodes
    reach too, by `driver/pool/device`, each with what keeps it from the request, "" for nothing.
    """

    claim: str
    request: str
    device_class: str
    count: int
    matching: int = 0
    taken: int = 0
    tainted: tuple[tuple[str, int], ...] = ()
    unfit: int = 0
    unknown: bool = False
    error: str = ""
    incomplete: bool = False
    gave_up: bool = False
    networked: tuple[tuple[str, str], ...] = ()
    less_isolated: int = 0
    choice: int = 0
