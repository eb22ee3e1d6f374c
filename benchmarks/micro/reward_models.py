"""The reward models that a study's methods learn from, trained by the project's own stages unless they exist.

Each starts from the starting policy's weights and learns from the program's feedback on the same pairs of responses. A
scalar one learns which of the two has the greater Σδ. One that writes feedback learns z = [critique; good spans; poor
spans] of both, or, for the ablation, z with a dash in place of the critique.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.micro.critic import ProfileCritic
from benchmarks.micro.methods import Learnt
from benchmarks.micro.task import PROFILES, make_record, record_of
from nl_gradient_policy_optimization.baselines.finetuning import RESULT_FILE
from nl_gradient_policy_optimization.baselines.preferences import Pair, load_pairs, save_pairs
from nl_gradient_policy_optimization.baselines.scalar_reward import ScalarRewardSettings
from nl_gradient_policy_optimization.baselines.scalar_reward import train as train_scalar
from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.rollouts import encode_prompt
from nl_gradient_policy_optimization.sampling import TransformersSampler
from nl_reward_model.config import RewardModelConfig
from nl_reward_model.train_rm import train
from text2grad.critics.reward_model.critic import DESCRIPTION_FILE, RewardModelCritic
from text2grad.models import load_model, load_tokenizer
from text2grad.records import save_json
from text2grad.tasks import Record
from text2grad.token_rewards import token_rewards

PROMPT_FILE = Path(__file__).with_name("reward_model_prompt.txt")
NO_CRITIQUE = "-"
_FOLDERS = {"scalar": "reward_model", "critique": "nl_reward_model", "spans": "nl_reward_model-no_critique"}


def train_reward_models(
    folder: Path, base: str, learnt: Sequence[Learnt], pairs: int, max_response_tokens: int, steps: int
) -> dict[Learnt, str]:
    """The folder of each. Models with the same number of pairs learn from the same pairs.

    Args:
        pairs: the number for those that name none.
        steps: updates of those that write feedback, for any number of pairs.
    """
    models = {}
    for model in learnt:
        suffix = f"-{model.pairs}" if model.pairs else ""
        path = folder / f"reward_model{suffix}-pairs.json"
        if not path.is_file():
            save_pairs(path, make_pairs(base, model.pairs or pairs, max_response_tokens))
        place = folder / f"{_FOLDERS[model.kind]}{suffix}"
        if model.kind == "scalar":
            train_scalar_reward_model(place, base, path)
        else:
            train_nl_reward_model(place, base, load_pairs(path).values(), model.kind == "critique", steps)
        models[model] = str(place)
    return models


def train_nl_reward_model(folder: Path, base: str, pairs: Iterable[Pair], critique: bool, steps: int) -> None:
    """Train unless it has finished; the notes, the response and z share the starting policy's 512 tokens."""
    if (folder / DESCRIPTION_FILE).is_file():
        return
    path = folder.with_name(f"{folder.name}-annotations.json")
    save_json(path, annotated_records(pairs, critique))
    config = RewardModelConfig(
        data_path=str(path),
        model=base,
        output_dir=str(folder),
        prompt=str(PROMPT_FILE),
        max_prompt_tokens=200,
        max_length=512,
        lora=False,
        dtype="float32",
        learning_rate=2e-3,
        warmup_steps=100,
        max_steps=steps,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=64,
        train_sampling_strategy="group_by_length",
        feedback_records=0,
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        logging_steps=200,
        disable_tqdm=True,
    )
    train(PROFILES.name, config)


def train_scalar_reward_model(folder: Path, base: str, pairs_path: Path) -> None:
    """Train unless it has finished."""
    if (folder / RESULT_FILE).is_file():
        return
    settings = ScalarRewardSettings(
        task=PROFILES.name,
        data_path=str(pairs_path),
        model=base,
        output_dir=str(folder),
        lora=False,
        dtype="float32",
        max_prompt_tokens=200,
        max_new_tokens=200,
        learning_rate=1e-3,
        num_train_epochs=3,
        per_device_train_batch_size=32,
        per_device_eval_batch_size=64,
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    train_scalar(settings)


def annotated_records(pairs: Iterable[Pair], critique: bool = True) -> list[Record]:
    """Both responses of each pair with the program's feedback, as records of stage 2."""
    critic, records = ProfileCritic(), []
    for pair in pairs:
        for side, response in (("chosen", pair.chosen), ("rejected", pair.rejected)):
            record = PROFILES.with_response(record_of(pair.prompt, f"{pair.id}-{side}"), response)
            feedback = replace(critic.feedback_on(record, response), scores=[], missing=[])
            if not critique:
                feedback = replace(feedback, critique=NO_CRITIQUE)
            records.append(PROFILES.with_feedback(record, feedback, {"source": critic.name}))
    return records


def make_pairs(base: str, count: int, max_new_tokens: int) -> list[Pair]:
    """Two sampled responses to each of ``count`` prompts; the one with the greater Σδ is chosen.

    A pair in which neither is greater, or a response is empty, is left out.
    """
    model, tokenizer = load_model(base, torch.float32), load_tokenizer(base)
    config = PolicyConfig(model=base, max_new_tokens=max_new_tokens, generation_batch_size=128)
    sampler = TransformersSampler(model, model, tokenizer, [tokenizer.eos_token_id], config)
    rng, critic, pairs = random.Random("preference pairs"), ProfileCritic(), []
    torch.manual_seed(0)
    records = [make_record(rng, number) for number in range(count)]
    prompts = [encode_prompt(PROFILES.prompt(record), PROFILES, tokenizer) for record in records]
    for record, first, second in zip(records, sampler(prompts), sampler(prompts), strict=True):
        texts = [tokenizer.decode(ids, skip_special_tokens=True) for ids in (first, second)]
        if not all(text.strip() for text in texts):
            continue
        totals = [
            sum(token_rewards(ids, tokenizer, critic.feedback_on(record, text), PROFILES).values)
            for ids, text in zip((first, second), texts, strict=True)
        ]
        if totals[0] == totals[1]:
            continue
        (worse, rejected), (better, chosen) = sorted(zip(totals, texts, strict=True))
        pairs.append(Pair(record["id"], PROFILES.prompt(record), chosen, rejected, better, worse, critic.name))
    return pairs


def load_reward_model(folder: str) -> RewardModelCritic:
    """The trained model as a critic: greedy, and every span a quote of the response."""
    return RewardModelCritic.load(folder, PROFILES, device="cpu", dtype="float32", batch_size=64, constrained="quotes")
