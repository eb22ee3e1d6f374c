"""Measuring policies: generation, each task's benchmarks, judges, and the report."""
