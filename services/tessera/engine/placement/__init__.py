"""Where a gang may go: which pods fit which nodes, devices and MIG positions, placement groups, topology."""
