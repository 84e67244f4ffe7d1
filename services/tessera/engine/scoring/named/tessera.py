"""The default: by the worth of what stays free."""

from tessera.engine.scoring.price_aware import PriceAware

policy = PriceAware
