"""Annotate summaries with a critique and good and poor spans.

python rm_data_anno/slf5k/dual_feedback_annotation_RM.py --data_path summaries.json --output_path annotated.json
"""

from rm_data_anno.annotate import main

if __name__ == "__main__":
    main("slf5k")
