"""Several processes: what they agree on before they begin, and that they make one process' update."""

import os
import shutil
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file

from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.devices import PATIENCE, check_shared_folder, process_group
from nl_gradient_policy_optimization.export import export
from nl_gradient_policy_optimization.optimize import prepare
from tests import reward_records
from tests.processes import run_ranks
from tests.tiny_runs import answer_with, deepspeed_file, tiny_config
from text2grad.errors import InputError
from text2grad.models import load_model


def test_ranks_wait_for_each_other_longer_than_a_critic_can_take():
    """A request may be sent seven times, for three times the limit on silence each, with 901 seconds between."""
    patient = PolicyConfig(critic="http://host/v1#m", critic_concurrency=8, rollouts_per_device=12)
    waits = 7 * 3 * 120 + 6 * 901
    assert process_group(patient, False).timeout == PATIENCE + waits * 2 * 2 * PATIENCE.resolution * 1_000_000
    both = patient.changed(audit_critic="openai:gpt-4o", critic_timeout=10.0, critic_retries=0)
    assert (process_group(both, True).timeout - PATIENCE).total_seconds() == 2 * 2 * 2 * 30
    voting = both.changed(critic_votes=3, critic_temperature=0.7)
    assert (process_group(voting, True).timeout - PATIENCE).total_seconds() == 4 * 2 * 2 * 30
    assert process_group(both, True).backend == "gloo"
    assert process_group(PolicyConfig(), False).timeout == PATIENCE


def _look(folder: str, shared: bool) -> None:
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    mine = Path(folder) / "run" if shared else Path(folder) / f"machine{rank}" / "run"
    os.environ["LOCAL_WORLD_SIZE"] = "2"  # no file system to wait for
    told = ""
    try:
        check_shared_folder(mine)
    except InputError as error:
        told = str(error)
    (Path(folder) / f"{rank}.txt").write_text(told)
    dist.destroy_process_group()


@pytest.mark.parametrize("shared", [True, False])
def test_machines_without_a_common_folder_are_named_on_every_rank(tmp_path, shared):
    assert run_ranks(_look, 2, str(tmp_path), shared) == [0, 0]
    told = [(tmp_path / f"{rank}.txt").read_text() for rank in (0, 1)]
    if shared:
        assert told == ["", ""] and not list((tmp_path / "run").iterdir())
    else:
        for rank, text in enumerate(told):
            assert f"machine{rank}" in text and "(rank 1) do not see what rank 0" in text and "share" in text


def _judged_in_process(folder: str, critic: str) -> None:
    config = tiny_config(Path(folder), rollouts_per_device=2, max_steps=1, critic=critic, max_critic_failures=1.0)
    config.deepspeed = deepspeed_file(Path(folder), 3)
    trainer = prepare("slf5k", config)
    trainer.train()
    trainer.accelerator.end_training()


@pytest.mark.slow
def test_a_reward_model_in_the_same_process_is_whole_under_zero_3(tmp_path):
    folder, _ = reward_records.memorised()
    tiny_config(tmp_path)
    deepspeed_file(tmp_path, 3)
    assert run_ranks(_judged_in_process, 2, str(tmp_path), str(folder)) == [0, 0]


ANSWERS = [
    "My sister got a parking ticket with my car.",
    "I did not get the raise that my boss told me about, after three years. Do I leave?",
    "Our dog barks.",
    "I forgot a birthday; my best friend does not answer, and I ask what to write.",
]


def _update_of(folder: str, name: str, method: str, settings: dict) -> None:
    """One update of a method on four fixed responses, whose rewards are the rules'."""
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    config = tiny_config(
        Path(folder), output_dir=str(Path(folder) / name), max_steps=1, rollouts_per_device=4 // ranks,
        micro_batch_size=1, ppo_epochs=1, max_new_tokens=128, critic="programmatic", algorithm=method, **settings,
    )  # fmt: skip
    trainer = prepare("slf5k", config)
    answers = [trainer.tokenizer(text, add_special_tokens=False)["input_ids"] for text in ANSWERS]
    answer_with(trainer, [[*ids, trainer.tokenizer.eos_token_id] for ids in answers])
    trainer.train()
    export(trainer)
    trainer.accelerator.end_training()


WAYS = [("2 ranks, DDP", None), ("2 ranks, ZeRO-1", 1), ("2 ranks, ZeRO-2", 2), ("2 ranks, ZeRO-3", 3)]


def _well_conditioned(name: str, weight: torch.Tensor, optimizer: str) -> torch.Tensor:
    """Which weights of the first update are more than rounding errors of their gradients.

    AdamW's first step is lr · g / (|g| + ε) with ε = 1e-8. Where g is of the size of ε, and so of a gradient's rounding
    errors, the step is neither 0 nor lr. lora_B starts at zero, so there the weight is the step.
    """
    if optimizer != "adamw" or "lora_B" not in name:
        return torch.ones_like(weight, dtype=torch.bool)
    return (weight.abs() < 1e-4) | (weight.abs() > 0.9e-2)


@pytest.mark.slow
def test_every_method_makes_one_process_update_on_two_ranks(tmp_path, capsys):
    """Printed as a table: the largest difference of a weight after one update, and of the update itself."""
    tiny_config(tmp_path)
    lines = ["| method | optimiser | way | largest difference | relative difference of the update |"]
    lines.append("| --- | --- | --- | ---: | ---: |")
    for method in ("text2grad", "verdict", "scalar", "steps"):
        for optimizer in ("adamw", "adafactor"):
            settings = {"optimizer": optimizer}
            assert run_ranks(_update_of, 1, str(tmp_path), "one", method, settings) == [0]
            one = load_file(tmp_path / "one" / "policy" / "adapter_model.safetensors")
            assert any(weight.abs().max() > 1e-4 for name, weight in one.items() if "lora_B" in name)
            for way, stage in WAYS:
                row = f"| {method} | {optimizer} | {way} |"
                if stage:
                    sharded = {**settings, "deepspeed": deepspeed_file(tmp_path, stage)}
                if stage and optimizer == "adafactor":
                    with pytest.raises(InputError, match="Adafactor"):
                        prepare("slf5k", tiny_config(tmp_path, **sharded))
                    lines.append(f"{row} refused | |")
                    continue
                shutil.rmtree(tmp_path / "two", ignore_errors=True)
                assert run_ranks(_update_of, 2, str(tmp_path), "two", method, sharded if stage else settings) == [0, 0]
                two = load_file(tmp_path / "two" / "policy" / "adapter_model.safetensors")
                known = {name: _well_conditioned(name, weight, optimizer) for name, weight in one.items()}
                assert sum(int((~each).sum()) for each in known.values()) < 10
                difference = max(float(((two[name] - one[name]).abs() * known[name]).max()) for name in one)
                # lora_B starts at zero: after one update it is the update.
                length = sum(float(weight.square().sum()) for name, weight in one.items() if "lora_B" in name) ** 0.5
                apart = sum(float((two[n] - one[n]).square().sum()) for n in one if "lora_B" in n) ** 0.5
                lines.append(f"{row} {difference:.1e} | {apart / length:.1e} |")
                assert difference < 1e-5, lines[-1]
                assert apart < 1e-4 * length, lines[-1]  # all weights
            shutil.rmtree(tmp_path / "one")
    with capsys.disabled():
        print("\n" + "\n".join(lines))


def test_an_adapter_goes_on_training_on_two_ranks(tmp_path):
    """Its frozen copy, the reference, is sharded beside it: the update has to be one process' all the same."""
    base = tiny_config(tmp_path).model
    adapter = get_peft_model(load_model(base, torch.float32), LoraConfig(r=4, target_modules="all-linear"))
    for name, parameter in adapter.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(std=0.05, generator=torch.Generator().manual_seed(0))
    adapter.peft_config["default"].base_model_name_or_path = base
    adapter.save_pretrained(tmp_path / "start")
    settings = {"model": str(tmp_path / "start"), "optimizer": "adamw", "learning_rate": 1e-3}
    assert run_ranks(_update_of, 1, str(tmp_path), "one", "scalar", settings) == [0]
    settings["deepspeed"] = deepspeed_file(tmp_path, 2)
    assert run_ranks(_update_of, 2, str(tmp_path), "two", "scalar", settings) == [0, 0]
    start, one, two = (
        load_file(tmp_path / name / "adapter_model.safetensors") for name in ("start", "one/policy", "two/policy")
    )
    assert one.keys() == two.keys() == start.keys()
    assert max(float((one[name] - start[name]).abs().max()) for name in one) > 5e-4
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, rtol=0, atol=1e-5)
