"""Learn the prices of a problem beside the service, in a process of its own: `python -m` runs this module there."""

from typing import Annotated

import orjson
from pydantic import Field, TypeAdapter, ValidationError

from tessera.engine.pricing.pricing_problem import PricingProblem
from tessera.kernel.errors import Transient
from tessera.kernel.process.subprocess_worker import answer, call_subprocess
from tessera_schemas.base import Count
from tessera_schemas.facts import PRICES_MAX

MODULE = "tessera.reclamation.prices.learning"
PROBLEM: TypeAdapter[PricingProblem] = TypeAdapter(PricingProblem)
PRICES: TypeAdapter[tuple[int, ...]] = TypeAdapter(
    Annotated[tuple[Count, ...], Field(min_length=1, max_length=PRICES_MAX)]
)
"""As the fact takes them: whatever else is answered must not end the service."""


async def learn_in_subprocess(problem: PricingProblem, seconds: float) -> tuple[int, ...]:
    """The prices of the problem's kinds. Raises Transient when there are none within `seconds`."""
    answer = await call_subprocess(MODULE, orjson.dumps(problem), seconds)
    try:
        return PRICES.validate_json(answer)
    except ValidationError as error:
        raise Transient(f"{MODULE}: the answer cannot be read: {answer[:100]!r}") from error


def taught(question: bytes) -> bytes:
    """Learns the prices of a problem; both the problem and the answer are JSON in bytes."""
    from tessera.engine.pricing.learner import learnt  # heavy: the service itself does without it

    return orjson.dumps(learnt(PROBLEM.validate_json(question)))


if __name__ == "__main__":
    answer(taught)
