"""Benchmarks, each beside its alternative in the same run. `python -m benchmarks.bench_NAME --help`."""
