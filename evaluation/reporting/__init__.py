"""The report: run folders and result files in, one page out. Read runs, training, comparing, assemble, page."""
