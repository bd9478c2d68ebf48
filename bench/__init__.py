"""Figures: how fast, and how it grows. `python -m bench [NAME…]` (`make bench`).

Printed, never asserted: a figure depends on the machine, a test must not. What matters across
machines is ratios, so every benchmark prints the growth between its sizes beside the numbers.

A benchmark is a module here with a docstring, whose first line says what it measures, and
`main() -> None`, which prints. List it in `__main__`.
"""
