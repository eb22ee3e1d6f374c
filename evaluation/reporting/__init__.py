"""The report: run folders and result files in, one page out. Read in this order: runs, compare, story, page."""
