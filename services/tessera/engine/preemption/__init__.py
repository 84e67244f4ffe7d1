"""Candidates and their cost, the victim search, reprieve and plans; growth and shrinking of elastic runs."""
