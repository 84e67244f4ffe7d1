"""
The Redis keys of a shard: views that projection derives from the ledger and that anybody may throw away.

All keys of a shard share one hash tag, so that the atomic script works on a Redis Cluster too. `<g>` is the
generation; a rebuild fills a new one and then moves the pointer.

| key | type | holds |
|---|---|---|
| `tessera:{<shard>}:current` | string | the generation that readers use |
| `tessera:{<shard>}:<g>:cursor` | string | the ledger n up to which the views hold |
| `tessera:{<shard>}:<g>:head` | string | the ledger as it was then, `N:HASH`; absent where 0.3 wrote the views |
| `tessera:{<shard>}:<g>:<view>` | hash | one field per entity, the value is JSON |
| `tessera:{<shard>}:quotes` | string | `KeptQuotes`: when waiting jobs start, of some seconds ago; of no generation |

| view | field | value |
|---|---|---|
| `jobs` | job id | `JobView` |
| `queues` | queue name | `QueueView` |
| `nodes` | node name | `NodeView` |
| `config` | `config` | `Config`, with its version |
| `refused` | an id of its own | `JobView` of phase `refused`: users' work in Kubernetes that is not taken in |
| `remembered_nodes` | node name | `NodeView`: the node at its best before it lost something, or was gone |

The views follow from the state of the ledger's end.
"""

from tessera_schemas.shard.services import OPERATOR_ROLE, SPECS, RedisUse

VIEWS = ("jobs", "queues", "nodes", "config", "refused", "remembered_nodes")
HASHES = (*VIEWS, "usage")
"""Every hash of a generation that a rebuild takes out; `usage` is one of version 0.4, which nobody writes any more."""
WRITERS = tuple(spec.name for spec in SPECS if spec.redis is RedisUse.WRITES)  # the only users that may run scripts
READERS = (*(spec.name for spec in SPECS if spec.redis is not RedisUse.WRITES), OPERATOR_ROLE.name)
"""Those that use no view see by the cursor whether the ledger still has its end."""


def current(shard: str) -> str:
    return f"tessera:{{{shard}}}:current"


def cursor(shard: str, generation: str) -> str:
    return f"tessera:{{{shard}}}:{generation}:cursor"


def head(shard: str, generation: str) -> str:
    return f"tessera:{{{shard}}}:{generation}:head"


def view(shard: str, generation: str, name: str) -> str:
    return f"tessera:{{{shard}}}:{generation}:{name}"


def quotes(shard: str) -> str:
    return f"tessera:{{{shard}}}:quotes"


def pattern(shard: str) -> str:
    """Key pattern that an ACL rule of a shard's user allows."""
    return f"tessera:{{{shard}}}:*"
