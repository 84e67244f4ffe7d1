"""
`python -m tests.kubernetes.bench.scaling`: scale-ups of a service against a cluster full of preemptible training.

Real API server, Deployment controller and HPA, a played metric, KWOK for kubelets. A scale-up is one replica of a whole
node of eight GPUs; it counts from the HPA's change of `spec.replicas` to all replicas at work, seen by looks of 50 ms.
"""

import argparse
import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.played_metrics import played_metrics
from tests.kubernetes.scaled_service import CONTROLLER_FLAGS, LEAST, scale_ups, serving_beside_training


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.kubernetes.bench.scaling", description=__doc__)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--scale-ups", type=int, default=50)
    asked = parser.parse_args()
    with (
        TemporaryDirectory(prefix="tessera-bench-") as folder,
        ControlPlane(Path(folder) / "plane", controller_flags=CONTROLLER_FLAGS) as plane,
        played_metrics(plane) as metrics,
    ):
        async with serving_beside_training(plane, Path(folder) / "platform", asked.nodes) as service:
            await service.fill()
            service.create(LEAST)
            metrics.wanted = LEAST
            await service.until_running(LEAST)
            service.autoscale(asked.nodes)
            seconds = sorted(await scale_ups(service, metrics, asked.scale_ups, asked.nodes))
            at = {part: seconds[min(len(seconds) - 1, len(seconds) * part // 100)] for part in (50, 90, 99)}
            told = ", ".join(f"p{part} {value:.2f} s" for part, value in at.items())
            print(f"{len(seconds)} scale-ups on {asked.nodes} nodes: {told}, longest {seconds[-1]:.2f} s")
            print(f"replicas at work, at least: {service.lowest}, guaranteed {LEAST}")
            print(f"training at the end: {service.in_training()} of {asked.nodes - LEAST} nodes that are left to it")


if __name__ == "__main__":
    asyncio.run(main())
