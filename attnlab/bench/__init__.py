"""Benchmarks that print a table: ratios within one run, never absolute promises."""
