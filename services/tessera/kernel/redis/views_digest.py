"""One hash over the views of a shard, so that two builds of them can be compared."""

import hashlib
from collections.abc import Mapping

from tessera_schemas.shard.keys import VIEWS


def views_digest(views: Mapping[str, Mapping[str, bytes]]) -> str:
    """
    The hash of every (view, key, value), 64 hexadecimal characters; independent of order.

    Left out is what follows from the way to the ledger's end (`keys.USAGE`). Lengths go in before the bytes, so that no
    two different contents read the same. A view without fields counts as one that is not there.
    """
    digest = hashlib.sha256()
    for view in sorted(views.keys() & set(VIEWS)):
        for key in sorted(views[view]):
            for part in (view.encode(), key.encode(), views[view][key]):
                digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()
