"""Run by ``test_other_frameworks.py`` in an environment of SkyRL: its generator and trainer, and our page's lines."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import skyrl_gym
import torch
from skyrl.backends.skyrl_train.utils import ppo_utils
from skyrl.train.config import AlgorithmConfig, GeneratorConfig, SkyRLGymConfig
from skyrl.train.dataset.preprocess import convert_prompts_responses_to_batch_tensors
from skyrl.train.generators.base import TrajectoryID
from skyrl.train.generators.skyrl_gym_generator import SkyRLGymGenerator
from skyrl.train.trainer import RayPPOTrainer
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

from tests.quoting_critic import CRITIC, TEXTS, encode, signs
from tests.tiny import tokenizer
from text2grad.advantages import gae, whiten
from text2grad.integrations.core import TokenJudge, last_user_turn

PAGE = Path(__file__).parents[1] / "docs" / "other_trainers.md"


class SilentEnvironment(BaseTextEnv):
    """One turn, no reward of its own."""

    def __init__(self, **_):
        super().__init__()

    def step(self, action: str) -> BaseTextEnvStepOutput:
        return BaseTextEnvStepOutput(observations=[], reward=0.0, done=True, metadata={})


class Engine:
    """What answers in place of vLLM, which needs a GPU: each prompt's last word decides."""

    async def generate(self, asked, model=None):
        prompts = [tokenizer().decode(ids) for ids in asked["prompt_token_ids"]]
        texts = [next(text for text in TEXTS if f"ask {text}" in prompt) for prompt in prompts]
        ids = [[*encode(text), tokenizer().eos_token_id] for text in texts]
        return {"responses": texts, "response_ids": ids, "stop_reasons": ["stop"] * len(ids)}

    async def finish_session(self, session_id):
        pass


@pytest.fixture(scope="module", params=[True, False], ids=["batched", "agent loop"])
def output(request):
    lines = PAGE.read_text(encoding="utf-8").partition("## SkyRL")[2].split("```python")[1].partition("```")[0]
    assert '"served:http://HOST:8765", "slf5k"' in lines
    names = {
        "asyncio": asyncio, "last_user_turn": last_user_turn, "tokenizer": tokenizer(), "TokenJudge": TokenJudge,
        "SkyRLGymGenerator": SkyRLGymGenerator,
    }  # fmt: skip
    exec(lines.replace("served:http://HOST:8765", CRITIC), names)
    if "silent" not in skyrl_gym.envs.registration.registry:
        skyrl_gym.register(id="silent", entry_point="tests.inside_skyrl:SilentEnvironment")
    settings = GeneratorConfig(batched=request.param, max_input_length=512)
    generator = names["FeedbackGenerator"](settings, SkyRLGymConfig(max_env_workers=0), Engine(), tokenizer())
    batch = {
        "prompts": [[{"role": "user", "content": f"ask {text}"}] for text in TEXTS],
        "env_classes": ["silent"] * len(TEXTS),
        "env_extras": [{} for _ in TEXTS],
        "trajectory_ids": [TrajectoryID(text, 0) for text in TEXTS],
    }
    return asyncio.run(generator.generate(batch))


def test_the_generators_rewards_are_those_of_each_token(output):
    for text, ids, rewards, mask in zip(
        TEXTS, output["response_ids"], output["rewards"], output["loss_masks"], strict=True
    ):
        assert ids == [*encode(text), tokenizer().eos_token_id]
        assert rewards == ([*signs(text), 0.0] if text != "silence" else [0.0] * len(ids))
        assert mask == [0 if text == "silence" else 1] * len(ids)
    assert any(reward < 0 for reward in output["rewards"][0]) and any(reward > 0 for reward in output["rewards"][0])


def test_the_trainer_keeps_them_on_their_tokens_and_its_gae_is_ours(output):
    trainer = object.__new__(RayPPOTrainer)
    settings = {"step_wise_trajectories": False, "merge_stepwise_output": False, "n_samples_per_prompt": 1}
    trainer.cfg, trainer.all_metrics = SimpleNamespace(generator=SimpleNamespace(**settings)), {}
    kept, _ = trainer.postprocess_generator_output(dict(output), list(TEXTS))
    assert kept["rewards"] == output["rewards"]
    columns = (kept[name] for name in ("prompt_token_ids", "response_ids", "rewards", "loss_masks"))
    _, _, mask, rewards, loss_mask, *_ = convert_prompts_responses_to_batch_tensors(0, *columns)
    for text, row, weights in zip(TEXTS, rewards, loss_mask, strict=True):
        wanted = [*signs(text), 0.0] if text != "silence" else []
        assert row.tolist() == [0.0] * (len(row) - len(wanted)) + wanted  # SkyRL aligns responses to the right
        assert bool(weights.any()) == (text != "silence")
    mask = mask.float()
    values = torch.linspace(-1, 1, rewards.numel()).view_as(rewards) * mask
    theirs, their_returns = ppo_utils.compute_advantages_and_returns(
        token_level_rewards=rewards.clone(), response_mask=mask, index=np.array(["a", "a", "b", "b"]),
        adv_estimator="gae", config=AlgorithmConfig(), values=values, gamma=1.0, lambd=0.95,
    )  # fmt: skip
    ours, returns = gae(rewards, values, mask, 1.0, 0.95)
    torch.testing.assert_close(their_returns * mask, returns)
    mine = whiten(ours, mask)
    scale = (theirs * mask).norm() / mine.norm()  # sample deviation there, the population's here
    assert scale == pytest.approx(1.0, abs=0.05)
    torch.testing.assert_close(theirs * mask, mine * scale, atol=1e-4, rtol=1e-4)
