"""Annotate solutions to programming tasks with a critique, wrong code and improvable code.

python rm_data_anno/kodcode/dual_feedback_annotation_RM.py --data_path solutions.json --output_path annotated.json
"""

from rm_data_anno.annotate import AnnotateConfig, annotate
from text2grad.configs import parse
from text2grad.errors import command


@command
def main() -> None:
    annotate("kodcode", parse(AnnotateConfig))


if __name__ == "__main__":
    main()
