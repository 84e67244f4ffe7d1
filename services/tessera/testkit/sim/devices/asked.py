"""Parts of jobs that only some have: network cards that a driver publishes, and rules for failures."""

from tessera_schemas.base import Json
from tessera_schemas.cluster.device_claims import DeviceChoice, DeviceClaim, DeviceRequest
from tessera_schemas.work.run_ends import RetryRule

NICS = "nic.example.com"
"""Driver, and class, of the network interfaces that nodes of the simulation have."""
_RULES: dict[int, tuple[Json, ...]] = {
    0: ({"exit_codes": [1], "action": "fail"}, {"causes": ["PodFailed"], "action": "retry", "count": False}),
    1: ({"exit_codes": [2], "action": "fail"}, {"causes": ["program"], "action": "retry_elsewhere"}),
    2: ({"causes": ["node"], "action": "fail"},),
    3: ({"causes": ["PodDeleted", "PodEvicted", "NodeRestarted"], "action": "retry_elsewhere", "count": True},),
}
RULES = {number: tuple(map(RetryRule.model_validate, rules)) for number, rules in _RULES.items()}
"""Rules of some jobs for their failures; none tries a program again for ever that always fails, or each would."""


def nic_claim(fast: bool) -> DeviceClaim:
    """A claim of one device that a driver publishes, of the fast ones or of all."""
    selectors = (f'device.attributes["{NICS}"].fast',) if fast else ()
    choice = DeviceChoice(device_class=NICS, selectors=selectors)
    return DeviceClaim(name="nic", requests=(DeviceRequest(name="one", choices=(choice,)),))
