"""Annotate solutions to programming tasks with a critique, wrong code and improvable code.

python rm_data_anno/kodcode/dual_feedback_annotation_RM.py --data_path solutions.json --output_path annotated.json

A record whose ``log`` is empty is run against its tests first, in the sandbox, and its log is written into the output.
"""

from rm_data_anno.annotate import main

if __name__ == "__main__":
    main("kodcode")
