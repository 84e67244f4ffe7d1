"""What DCGM's metrics tell of a GPU's health: XIDs, counters that rise, bits of lowered clocks; and lying exporters."""

import pytest

from tessera.reclamation.health.counters import DEVICES_MAX, METRICS, GpuCounters, Sighting
from tessera.reclamation.health.xids import XIDS
from tessera.reclamation.idle_runs.samples import read_samples
from tessera_schemas.cluster.health import HealthCause

UUID = "GPU-1"
LAST, COUNTED = "DCGM_FI_DEV_XID_ERRORS", "DCGM_EXP_XID_ERRORS_COUNT"
DBE, REMAPPED = "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS"
CRC, RECOVERY = (f"DCGM_FI_DEV_NVLINK_{what}_ERROR_COUNT_TOTAL" for what in ("CRC_FLIT", "RECOVERY"))
CLOCKS = "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"


def page(uuid: str = UUID, more: str = "", **values: object) -> str:
    """A page in the exporter's text format: these metrics of one GPU."""
    labels = f'gpu="0",UUID="{uuid}",device="nvidia0",Hostname="n",namespace="lab",pod="a-1-0"{more}'
    return "".join(f"{name}{{{labels}}} {value}\n" for name, value in values.items())


class Looks:
    """Looks at one node every 30 seconds."""

    def __init__(self) -> None:
        self.counters, self.now = GpuCounters(), 1000

    def at(self, text: str) -> list[Sighting]:
        self.now += 30
        return self.counters.look("n", read_samples(text, METRICS), self.now)

    def causes(self, text: str) -> list[HealthCause]:
        return [sighting.ailment.cause for sighting in self.at(text)]


def test_an_xid_that_a_reset_alone_ends_is_news_at_once_and_stands_until_the_exporter_begins_anew() -> None:
    looks = Looks()
    assert looks.causes(page(**{LAST: 0})) == []
    (seen,) = looks.at(page(**{LAST: 79}))
    assert (seen.ailment.cause, seen.ailment.device, seen.at_once) == (HealthCause.GPU_LOST, UUID, True)
    assert seen.ailment.evidence == "XID 79: GPU has fallen off the bus"
    assert looks.causes(page(**{LAST: 79})) == [HealthCause.GPU_LOST]
    assert looks.causes(page(**{LAST: 31})) == [HealthCause.GPU_LOST]  # a later one hides it, and ends nothing
    assert looks.causes(page(**{LAST: 0})) == []


def test_an_xid_of_the_first_look_counts_if_it_stands_and_not_if_it_may_be_old() -> None:
    assert Looks().causes(page(**{LAST: 79})) == [HealthCause.GPU_LOST]
    looks = Looks()
    assert looks.causes(page(**{LAST: 94})) == []
    assert looks.causes(page(**{LAST: 94})) == []
    looks.at(page(**{LAST: 0}))
    assert looks.causes(page(**{LAST: 94})) == [HealthCause.GPU_MEMORY]


@pytest.mark.parametrize("xid", [8, 13, 31, 32, 43, 45, 63, 68, 69, 92, 137, 154, 9999, 0.5, -1, "NaN", "+Inf", 1e300])
def test_a_programs_own_xid_an_unknown_and_an_absurd_one_say_nothing(xid: object) -> None:
    looks = Looks()
    looks.at(page(**{LAST: 0}))
    assert looks.causes(page(**{LAST: xid})) == []


def test_xids_that_are_counted_each_are_read_beside_the_last_one() -> None:
    looks = Looks()
    assert looks.causes(page(more=',xid="74"', **{COUNTED: 2})) == [HealthCause.LINK_ERRORS]
    both = page(more=',xid="31"', **{COUNTED: 5}) + page(more=',xid="119"', **{COUNTED: 1}) + page(**{LAST: 119})
    assert looks.causes(both) == [HealthCause.GPU_FAULT]
    assert looks.causes(page(more=',xid="119"', **{COUNTED: 0}) + page(**{LAST: 0})) == []
    assert looks.causes(page(more=',xid="a lie"', **{COUNTED: 3})) == []


def test_of_a_counter_only_its_rise_between_two_looks_counts() -> None:
    looks = Looks()
    assert looks.causes(page(**{DBE: 7})) == []
    assert looks.causes(page(**{DBE: 7})) == []
    (seen,) = looks.at(page(**{DBE: 9}))
    assert (seen.ailment.cause, seen.at_once) == (HealthCause.GPU_MEMORY, True)
    assert seen.ailment.evidence == "2 double-bit ECC errors in 30 s"
    assert looks.causes(page(**{DBE: 0})) == []  # its driver was loaded anew
    assert looks.causes(page(**{DBE: 0})) == []
    assert looks.causes(page(**{DBE: 1})) == [HealthCause.GPU_MEMORY]


def test_links_may_err_at_a_low_rate_and_never_recover() -> None:
    looks = Looks()
    looks.at(page(**{CRC: 0, RECOVERY: 0}))
    assert looks.causes(page(**{CRC: 2_999, RECOVERY: 0})) == []
    assert looks.causes(page(**{CRC: 6_000, RECOVERY: 0})) == [HealthCause.LINK_ERRORS]
    assert looks.causes(page(**{CRC: 6_000, RECOVERY: 1})) == [HealthCause.LINK_ERRORS]


def test_rows_that_cannot_be_remapped_stand_and_those_that_are_count() -> None:
    looks = Looks()
    failed = {"DCGM_FI_DEV_ROW_REMAP_FAILURE": 1, REMAPPED: 4}
    assert looks.causes(page(**failed)) == [HealthCause.GPU_MEMORY]
    assert looks.causes(page(**failed)) == [HealthCause.GPU_MEMORY]
    assert looks.causes(page(**{REMAPPED: 5})) == [HealthCause.GPU_MEMORY]


@pytest.mark.parametrize(
    ("bits", "told"),
    [(0x0, None), (0x1, None), (0x4, None), (0x40, "heat"), (0x68, "hardware slowdown, heat, by software, heat")],
    ids=["full speed", "idle", "power cap", "heat", "several"],
)
def test_clocks_that_are_low_for_a_fault_are_seen_and_have_to_last(bits: int, told: str | None) -> None:
    for name in (CLOCKS, "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"):
        found = [(one.ailment.evidence, one.at_once) for one in Looks().at(page(**{name: bits}))]
        assert found == ([] if told is None else [(f"clocks are lowered: {told}", False)])


def test_a_lying_exporter_is_bounded_in_devices_names_and_values() -> None:
    many = "".join(page(f"GPU-{number}", **{LAST: 79}) for number in range(10 * DEVICES_MAX))
    assert len(Looks().at(many)) == DEVICES_MAX
    assert Looks().at(page("G" * 500, **{LAST: 79})) == []
    assert Looks().at(page("GPU\x07", **{LAST: 79})) == []
    looks = Looks()
    looks.at(page(**{DBE: 0}))
    assert looks.at(page(**{DBE: 1e18})) == []


def test_a_gpu_without_a_uuid_is_named_by_its_number_and_one_without_either_not_at_all() -> None:
    assert [one.ailment.device for one in Looks().at(f'{LAST}{{gpu="3"}} 79\n')] == ["gpu 3"]
    assert Looks().at(f'{LAST}{{Hostname="n"}} 79\n') == []


def test_what_is_said_of_one_device_by_several_samples_is_said_once() -> None:
    of_two_pods = page(**{LAST: 79}) + page(more=',GPU_I_ID="1"', **{LAST: 79})
    assert Looks().causes(of_two_pods) == [HealthCause.GPU_LOST]


def test_every_known_xid_has_a_meaning_that_fits_into_a_record() -> None:
    assert all(xid.meaning and len(xid.meaning) < 60 for xid in XIDS.values())
    assert {79, 48, 64, 74, 94, 95, 119, 120, 140, 143} <= XIDS.keys()
    assert not {13, 31, 43, 45, 63} & XIDS.keys()
