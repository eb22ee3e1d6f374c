"""Settings, answers and a critic that the baselines' tests share."""

from pathlib import Path

from nl_gradient_policy_optimization.rollouts import Rollout
from tests.conftest import ROOT
from tests.tiny import tiny_model, tokenizer
from tests.tiny_runs import POSTS
from text2grad.feedback import Feedback, FeedbackError
from text2grad.tasks import get_task
from text2grad.token_text import token_spans

BASELINES = ROOT / "nl_gradient_policy_optimization" / "baselines"
SLF5K, KODCODE, ULTRA = get_task("slf5k"), get_task("kodcode"), get_task("ultrafeedback")
GOOD = "The writer's sister got a parking ticket with the borrowed car, and they ask who pays."
BAD = "Bananas are yellow."


class QuotingCritic:
    """Blames or praises given quotes wherever they occur; fails on a response that says so; counts its work."""

    name = "quoting"

    def __init__(self, poor=(), good=()):
        self.poor, self.good, self.judged = poor, good, []

    def __call__(self, prompts, responses, records=None):
        self.judged += responses
        return [
            FeedbackError("no reply")
            if "fail" in text
            else Feedback("See.", [q for q in self.good if q in text], [q for q in self.poor if q in text])
            for text in responses
        ]


def settings(kind, folder: Path, data: Path, **changes):
    """A few training steps on a tiny model."""
    model = folder / "tiny"
    defaults = {
        "task": "slf5k", "data_path": str(data), "output_dir": str(folder / "run"),
        "model": str(model) if model.exists() else tiny_model(model), "dtype": "float32", "lora_dropout": 0.0,
        "learning_rate": 1e-2, "max_steps": 12, "per_device_train_batch_size": 2, "validation_share": 0.0,
        "logging_steps": 1, "save_steps": 6, "report_to": "none", "gradient_checkpointing": False, "disable_tqdm": True,
    }  # fmt: skip
    return kind(**{**defaults, **changes})


def rollout(text: str, **changes) -> Rollout:
    tok = tokenizer()
    ids = [*tok(text, add_special_tokens=False)["input_ids"], tok.eos_token_id]
    response, spans = token_spans(ids, tok)
    values = {
        "id": "a", "prompt": POSTS[0], "record": {"post": POSTS[0], "question": POSTS[0]}, "prompt_ids": [5, 6],
        "response_ids": ids, "response": response, "spans": spans, "tokens": [], "finished": True,
    }  # fmt: skip
    return Rollout(**{**values, **changes})
