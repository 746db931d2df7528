"""What is lost when things go wrong: `python -m benchmarks.faults`."""
