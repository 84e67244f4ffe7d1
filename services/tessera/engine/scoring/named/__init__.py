"""
The scoring policies by name, one module each (`gpu-packing` is `gpu_packing`): its `policy` makes it of a mix.

A new policy is a module here, and its name in the contract's `PlacementName`.
"""
