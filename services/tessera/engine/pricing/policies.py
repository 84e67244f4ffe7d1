"""The placement policies by name. All answer the same question on the same arrays, and all follow one tie rule."""

from tessera.engine.pricing.choosing import BESTFIT, CLUSTERING, DOTPROD, FGD, PACKING, RANDOM, TESSERA

PACKING_ENGINE_ID = "packing-1"
"""A change of what any policy would choose is a new id."""

POLICIES = {
    "random": RANDOM,
    "dotprod": DOTPROD,
    "gpu-clustering": CLUSTERING,
    "gpu-packing": PACKING,
    "bestfit": BESTFIT,
    "fgd": FGD,
    "tessera": TESSERA,
}
DEFAULT = "tessera"
