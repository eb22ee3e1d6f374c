"""Run by ``test_other_frameworks.py`` in an environment of verl's: its own classes with our reward manager inside."""

import asyncio
import inspect
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import verl
from hydra import compose, initialize_config_dir
from tensordict import TensorDict
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput, AgentLoopWorker
from verl.experimental.agent_loop.agent_loop import _InternalAgentLoopOutput as PaddedOutput
from verl.experimental.reward_loop.reward_loop import RewardLoopWorker
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo import core_algos

from tests.quoting_critic import CRITIC, TEXTS, encode, signs
from tests.tiny import tiny_model
from text2grad.advantages import gae, whiten
from text2grad.integrations.verl import KEY, SUMMED, Text2GradRewardManager


@pytest.fixture(scope="module")
def config_of(tmp_path_factory):
    model = tiny_model(tmp_path_factory.mktemp("verl") / "model")

    def make(*overrides: str):
        with initialize_config_dir(str(Path(verl.__file__).parent / "trainer" / "config"), version_base=None):
            given = [f"actor_rollout_ref.model.path={model}", "reward.reward_manager.name=text2grad"]
            given += ["algorithm.adv_estimator=gae", f"+text2grad.critic={CRITIC}"]
            return compose("ppo_trainer", [*given, *overrides])

    return make


def sample(text: str, width: int = 16) -> verl.DataProto:
    """One rollout as verl's reward workers get it."""
    ids = encode(text)
    responses = torch.tensor([ids + [0] * (width - len(ids))])
    prompts = torch.tensor([[5, 6, 7]])
    mask = torch.tensor([[1] * (3 + len(ids)) + [0] * (width - len(ids))])
    chat = np.empty(1, dtype=object)
    chat[0] = [{"role": "user", "content": f"ask {text}"}]
    batch = TensorDict({"prompts": prompts, "responses": responses, "attention_mask": mask}, batch_size=1)
    return verl.DataProto(batch=batch, non_tensor_batch={"raw_prompt": chat, "extra_info": np.array([{"n": 1}])})


@pytest.fixture(scope="module")
def scored(config_of):
    worker = RewardLoopWorker(config_of())
    assert isinstance(worker.reward_manager, Text2GradRewardManager)

    async def all_at_once():
        return await asyncio.gather(*(worker.compute_score(sample(text)) for text in TEXTS))

    return worker.loop.run_until_complete(all_at_once())


def test_verls_worker_gets_a_score_and_the_rewards_of_each_token(scored):
    for text, result in zip(TEXTS[:3], scored, strict=False):
        info = result["reward_extra_info"]
        assert json.loads(info[KEY]) == signs(text)
        assert result["reward_score"] == sum(signs(text))
        assert info["text2grad_critique"] == f"on ask {text}"
    info = scored[3]["reward_extra_info"]
    assert (info["text2grad_failed"], info["text2grad_error"]) == (1.0, "nothing to say")
    assert not any(json.loads(info[KEY]))


def test_the_streaming_trainer_gets_them_on_their_tokens(scored):
    for text, result in zip(TEXTS, scored, strict=True):
        ids = encode(text)
        output = AgentLoopOutput(
            prompt_ids=[5], response_ids=ids, response_mask=[1] * len(ids), metrics=AgentLoopMetrics(),
            reward_score=result["reward_score"], extra_fields={"reward_extra_info": result["reward_extra_info"]},
        )  # fmt: skip
        assert output.as_dict()["rm_scores"].tolist() == (signs(text) if text != "silence" else [0.0] * len(ids))
    plain = AgentLoopOutput(
        prompt_ids=[5], response_ids=[6, 7], response_mask=[1, 1], metrics=AgentLoopMetrics(), reward_score=2.0
    )
    assert plain.as_dict()["rm_scores"].tolist() == [0.0, 2.0]


def padded(text: str, result: dict) -> PaddedOutput:
    data = sample(text).batch
    full = torch.cat([data["prompts"], data["responses"]], 1)
    return PaddedOutput(
        prompt_ids=data["prompts"], response_ids=data["responses"], input_ids=full, position_ids=full,
        response_mask=data["attention_mask"][:, 3:], attention_mask=data["attention_mask"],
        metrics=AgentLoopMetrics(), num_turns=2, reward_score=result["reward_score"],
        extra_fields={"reward_extra_info": result["reward_extra_info"]},
    )  # fmt: skip


def test_the_batched_trainer_gets_them_too_and_its_gae_is_ours(scored):
    worker = object.__new__(AgentLoopWorker)
    worker.reward_loop_worker_handles = None
    data = worker._postprocess(list(map(padded, TEXTS, scored)))
    for text, row in zip(TEXTS, data.batch["rm_scores"], strict=True):
        values = signs(text) if text != "silence" else []
        assert row.tolist() == values + [0.0] * (16 - len(values))
    assert data.non_tensor_batch["text2grad_critique"][0] == f"on ask {TEXTS[0]}"
    rewards, mask = data.batch["rm_scores"], data.batch["response_mask"].float()
    values = torch.linspace(-1, 1, rewards.numel()).view_as(rewards)
    theirs, their_returns = core_algos.compute_gae_advantage_return(rewards, values, mask, 1.0, 0.95)
    ours, returns = gae(rewards, values, mask, 1.0, 0.95)
    torch.testing.assert_close(their_returns * mask, returns)
    # verl divides by the sample deviation, we by the population's
    count = mask.sum()
    torch.testing.assert_close(theirs * mask, whiten(ours, mask) * ((count - 1) / count).sqrt(), atol=1e-4, rtol=1e-4)


def test_a_colocated_batch_is_assembled_from_the_scores(scored):
    batch = verl.DataProto.concat([sample(text) for text in TEXTS])
    laid = Text2GradRewardManager.assemble_rm_scores(batch, [result["reward_score"] for result in scored])
    assert laid[0].tolist()[: len(encode(TEXTS[0]))] == signs(TEXTS[0])
    assert laid.shape == batch.batch["responses"].shape


def depends_on_place(name: str) -> bool:
    """Whether an estimator's advantages change where a reward moves to another token of its response."""
    mask = torch.ones(4, 6)
    rewards = torch.zeros(2, 4, 6)
    rewards[0, :, 1] = rewards[1, :, 4] = torch.tensor([1.0, -1.0, 2.0, 0.5])
    index = np.array(["a", "a", "b", "b"])
    options = {
        "response_mask": mask, "index": index, "config": AlgoConfig(), "values": torch.zeros(4, 6), "gamma": 1.0,
        "lam": 0.9, "reward_baselines": torch.zeros(4), "non_tensor_batch": {}, "batch": {}, "num_samples": 2,
        "old_log_probs": torch.zeros(4, 6), "sum_pi_squared": torch.ones(4, 6),
    }  # fmt: skip
    function = core_algos.get_adv_estimator_fn(name)
    names = inspect.signature(function).parameters
    found = [
        function(**{"token_level_rewards": each.clone(), **{k: v for k, v in options.items() if k in names}})[0]
        for each in rewards
    ]
    return not torch.allclose(*found, atol=1e-6)


def test_refused_are_those_estimators_whose_advantages_forget_the_place():
    known = {
        name: depends_on_place(name)
        for name in map(str, core_algos.ADV_ESTIMATOR_REGISTRY)
        if name not in ("gdpo", "tir_optimal_token_baseline", "optimal_token_baseline")
    }
    assert {name for name, depends in known.items() if not depends} == set(SUMMED) - {"gdpo"}
    assert {"gae", "reinforce_plus_plus"} <= {name for name, depends in known.items() if depends}


@pytest.mark.parametrize("name", ["grpo", "rloo"])
def test_estimators_that_sum_are_refused(config_of, name):
    with pytest.raises(ValueError, match=f"adv_estimator={name}: adds the token rewards"):
        RewardLoopWorker(config_of(f"algorithm.adv_estimator={name}"))
