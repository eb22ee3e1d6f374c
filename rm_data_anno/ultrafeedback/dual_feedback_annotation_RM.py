"""Annotate answers with a critique and good and poor spans.

python rm_data_anno/ultrafeedback/dual_feedback_annotation_RM.py --data_path answers.json --output_path annotated.json
"""

from rm_data_anno.annotate import main

if __name__ == "__main__":
    main("ultrafeedback")
