"""What watches a run without being part of algorithm 4: metrics, audits."""
