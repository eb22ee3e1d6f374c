"""Small annotated records of the three tasks, and a reward model that knows some of them by heart."""

import atexit
import json
import shutil
from functools import lru_cache
from pathlib import Path
from tempfile import mkdtemp

from nl_reward_model.config import RewardModelConfig
from nl_reward_model.train_rm import train
from tests.tiny import tiny_model

PROMPT = "Judge.\n${prompt}\n> ${response}"

_POSTS = ["my dog ate the cake", "the car would not start", "we sold our house", "I lost my job in May"]
_SUMMARIES = [
    ("A dog ate it.", ["A dog"], []),
    ("No car was sold!", [], ["was sold"]),
    ("They sold the house.", ["sold the house"], ["They"]),
]


def slf5k_records(posts: int = 4) -> dict[str, dict]:
    """Three annotated summaries for each of ``posts`` posts; every response differs."""
    records = {}
    for p in range(posts):
        for s, (summary, good, poor) in enumerate(_SUMMARIES):
            critique = f"Post {p}, summary {s}: {'good' if good else 'poor'}."
            about = {"post": f"{_POSTS[p % 4]} ({p})", "generated_summary": f"{summary} ({p})"}
            records[f"t3_{p}_{s}"] = {**about, "textual_feedback": critique, "good_spans": good, "poor_spans": poor}
    return records


def kodcode_records() -> list[dict]:
    judged = {"test": "", "log": "", "code_feedback": "It subtracts.", "improvement_code": ["def add(a):"]}
    records = []
    for n in range(3):
        about = {"question_id": f"q{n}", "question": f"Add {n} to a number.", "wrong_code": [f"return a - {n}"]}
        records.append({**about, "solution": f"def add(a):\n    return a - {n}\n", **judged})
    return records


def ultrafeedback_records() -> list[dict]:
    records = []
    for number in range(3):
        asked, told = f"What is {number} plus one?", f"It is {number + 1}."
        messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": f"{told} I hope that helps!"}]
        record = {"prompt": asked, "prompt_id": f"p{number}", "response": messages}
        judged = {"textual_feedback": "Right, with a phrase too many.", "poor_spans": ["I hope that helps!"]}
        records.append({**record, **judged, "good_spans": [told]})
    return records


RECORDS = {"slf5k": slf5k_records, "kodcode": kodcode_records, "ultrafeedback": ultrafeedback_records}


def write(folder: Path, records: dict | list) -> str:
    path = folder / "annotated.json"
    path.write_text(json.dumps(records), encoding="utf-8")
    return str(path)


def prompt_file(folder: Path) -> str:
    path = folder / "prompt.txt"
    path.write_text(PROMPT, encoding="utf-8")
    return str(path)


def settings(folder: Path, data: str, **changes) -> RewardModelConfig:
    """Settings for a tiny model in fp32 that trains all its weights for a few steps."""
    if "model" not in changes:
        changes["model"] = str(folder / "model")
        if not (folder / "model").exists():
            tiny_model(folder / "model")
    values = {
        "data_path": data, "output_dir": str(folder / "reward_model"), "prompt": prompt_file(folder),
        "max_prompt_tokens": 500, "max_length": 900, "shorten": "tail", "dtype": "float32", "lora_r": 0,
        "learning_rate": 1e-3, "max_steps": 4, "per_device_train_batch_size": 2, "activation_checkpointing": False,
        "validation_share": 0.25, "feedback_records": 2, "logging_steps": 1, "report_to": "none", "disable_tqdm": True,
    }  # fmt: skip
    return RewardModelConfig(**{**values, **changes})


def losses(folder: str | Path) -> list[float]:
    """Of each step of a training."""
    states = sorted(Path(folder).glob("checkpoint-*/trainer_state.json"), key=lambda path: int(path.parent.name[11:]))
    history = json.loads(states[-1].read_text())["log_history"]
    return [row["loss"] for row in history if "loss" in row]


def same_result(one: Path, other: Path, weights: str = "adapter_model.safetensors") -> bool:
    return (one / weights).read_bytes() == (other / weights).read_bytes()


@lru_cache
def memorised(head_dim: int = 16, critique: bool = True) -> tuple[Path, dict[str, dict]]:
    """A reward model's folder, and the six records that it has learnt by heart."""
    folder, records = Path(mkdtemp(prefix="memorised-")), slf5k_records(2)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if not critique:
        records = {key: {k: v for k, v in record.items() if k != "textual_feedback"} for key, record in records.items()}
    model = tiny_model(folder / "model", hidden_size=64, intermediate_size=128, head_dim=head_dim)
    sizes = {"max_steps": 120, "per_device_train_batch_size": 6, "logging_steps": 40, "validation_share": 0.0}
    config = settings(folder, write(folder, records), model=model, learning_rate=1e-2, critique=critique, **sizes)
    train("slf5k", config)
    return folder / "reward_model", records
