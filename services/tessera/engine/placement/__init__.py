"""Placement of gangs: which pods fit which nodes, devices and MIG positions, placement groups, topology."""
