"""Rounding on the non-negative integers, by the names that the rest of the reference uses."""


def floor_to(value: int, unit: int) -> int:
    """The largest multiple of ``unit`` that is not above ``value``; ``unit`` is positive."""
    return value // unit * unit


def ceil_div(value: int, unit: int) -> int:
    """How many units cover ``value``; ``unit`` is positive."""
    return -(-value // unit)
