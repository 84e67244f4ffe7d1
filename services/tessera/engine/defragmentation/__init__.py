"""What reclamation proposes: relocations that make room in one piece, cuts of MIG, and tests of suspected nodes."""
