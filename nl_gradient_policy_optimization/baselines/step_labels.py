"""Turn annotated spans into labels of whole steps: what a process reward model is trained on (appendix N).

    python nl_gradient_policy_optimization/baselines/step_labels.py --task slf5k --data_path annotated.json \\
        --output_path annotated_steps.json

The output has the format of stage 1, so that stage 2 trains on it (`nl_reward_model/<task>/train_rm.py`): each wrong
step is one poor span, neighbouring ones together where a right step has the text of one of them; for slf5k each right
step is a good span (in code, what no span claims is right already).
"""

from dataclasses import MISSING, dataclass
from itertools import groupby
from operator import itemgetter

from nl_gradient_policy_optimization.algorithms.steps import label_steps, split_steps
from text2grad.configs import TaskConfig, parse, setting
from text2grad.critics.reward_model.examples import load_annotated
from text2grad.errors import command
from text2grad.feedback import Feedback
from text2grad.records import annotation_of, check_output, save_records
from text2grad.tasks import Record, Task, get_task
from text2grad.tasks.commands import quoted, say_next, stage_command


@dataclass
class StepLabelsConfig(TaskConfig):
    """Annotated records in, the same records with whole steps as spans out."""

    data_path: str = setting(MISSING, "annotated records (stage 1)", "--dataset_path", "--input_file", "--responses")
    output_path: str = setting(MISSING, "where the records go", "--output_file", "--output")


def by_step(record: Record, task: Task) -> Record:
    """The annotated record with its feedback's spans widened to steps."""
    feedback = task.feedback(record)
    assert feedback is not None  # load_annotated leaves such records out
    text = task.response(record)
    steps = split_steps(text, task)
    labels = label_steps(steps, text, feedback, task)
    right = [text[start:end] for (start, end), label in zip(steps, labels, strict=True) if label > 0]
    wrong: list[str] = []
    for start, end in task.rewarded(text):
        judged = [(step, label) for step, label in zip(steps, labels, strict=True) if start <= step[0] < end]
        for label, run in groupby(judged, key=itemgetter(1)):
            places = [place for place, _ in run]
            pieces = [text[low:high] for low, high in places]
            if label < 0:  # a right step with the text of a wrong one would be wrong, too: neighbours tell them apart
                wrong += [text[places[0][0] : places[-1][1]]] if {*pieces} & {*right} else pieces
    whole = Feedback(feedback.critique, good=[] if task.is_code else right, poor=wrong)
    return task.with_feedback(record, whole, {**annotation_of(record), "unit": "step"})


@command
def main() -> None:
    config = parse(StepLabelsConfig)
    task = get_task(config.task)
    split_steps("", task)  # refuses a task without steps
    check_output(config.output_path)
    records = load_annotated(config.data_path, task.without_critique())  # spans are enough
    save_records(config.output_path, records.like({key: by_step(record, task) for key, record in records.items()}))
    print(f"{len(records)} annotated records, labelled by step -> {config.output_path}")
    say_next(f"{stage_command('reward_model', task)} --data_path {quoted(config.output_path)} --output_dir RUN")


if __name__ == "__main__":
    main()
