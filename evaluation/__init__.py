"""What a policy is worth: generation, each task's benchmarks, judges, and the report."""
