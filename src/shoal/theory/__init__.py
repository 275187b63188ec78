"""Bounds and formulas that more than one paper can use."""
