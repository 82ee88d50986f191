"""Measurements of Shardwheel: `python -m benchmarks SCENARIO [--json]`.

Each scenario makes its own database server in a temporary folder, with durable commits, and prints medians. The figures
are those of the machine it runs on, shared with whatever else runs there.
"""
