"""How a refusal for lack of room is said to people: what a pod needs, how near the best node comes, and why not."""

from collections.abc import Mapping

NEEDED = ("gpus_wanted", "most_gpus_free_on_a_node", "pods", "pods_placed")
NODES = "nodes"
SHORT = "nodes_"
BEST = ("largest_", "most_")


def need_words(numbers: Mapping[str, int]) -> str:
    """Such as `needs a node with 8 free GPUs; the best has 3`; "" where the numbers do not say it."""
    if not all(name in numbers for name in NEEDED):
        return ""
    gpus, most, pods, placed = (numbers[name] for name in NEEDED)
    if placed:
        return f"needs room for {pods} pods of {_gpus(gpus)}; there is room for {placed}"
    each = "a node with" if pods == 1 else f"room for {pods} pods, each on a node with"
    return f"needs {each} {gpus} free GPU{_s(gpus)}; the best has {most}" if most < gpus else ""


def node_words(numbers: Mapping[str, int]) -> str:
    """Such as `of 5 nodes 3 short of gpu, 2 tainted`; "" where no node is counted."""
    counted = {name: count for name, count in numbers.items() if name.startswith(SHORT) and count}
    if NODES not in numbers or not counted:
        return ""
    failures = [f"{count} {name.removeprefix(SHORT).replace('_', ' ')}" for name, count in sorted(counted.items())]
    return f"of {numbers[NODES]} node{_s(numbers[NODES])} {', '.join(failures)}"


def said_by(numbers: Mapping[str, int]) -> set[str]:
    """Names of the numbers that these words say."""
    return (set(NEEDED) if need_words(numbers) else set()) | _counted(numbers)


def said_of_never(numbers: Mapping[str, int]) -> set[str]:
    """Names of the numbers that other words say of a job that no node could ever hold."""
    best = {name for name in numbers if name.startswith(BEST)} | {"pods", "pods_placed"}
    return best | _counted(numbers)


def _counted(numbers: Mapping[str, int]) -> set[str]:
    return {name for name in numbers if name.startswith(SHORT)} | {NODES} if node_words(numbers) else set()


def _gpus(count: int) -> str:
    return f"{count} GPU{_s(count)}"


def _s(count: int) -> str:
    return "" if count == 1 else "s"
