"""Annotate summaries with a critique and good and poor spans.

python rm_data_anno/slf5k/dual_feedback_annotation_RM.py --data_path summaries.json --output_path annotated.json
"""

from rm_data_anno.annotate import AnnotateConfig, annotate
from text2grad.configs import parse
from text2grad.errors import command


@command
def main() -> None:
    annotate("slf5k", parse(AnnotateConfig))


if __name__ == "__main__":
    main()
