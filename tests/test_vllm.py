"""The stages against vLLM itself: a served annotator, judge, reward model and policy."""

import math
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen

import pytest

from tests.processes import all_said, start_command
from tests.reward_records import memorised
from tests.tiny import tiny_model
from tests.tiny_runs import rows, tiny_flags
from tests.vllm_servers import real_vllm, vllm_server
from text2grad.critics import load_critic
from text2grad.endpoints.client import ChatClient
from text2grad.feedback import Feedback
from text2grad.tasks import get_task

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def reward_model(tmp_path_factory) -> Iterator[tuple[str, Path, dict[str, dict]]]:
    """A served reward model: its spec, its folder, and the records that it knows by heart."""
    real_vllm()
    folder, known = memorised(32)
    flags = ("--served-model-name", "reward_model", "--dtype", "float32")
    with vllm_server(str(folder), tmp_path_factory.mktemp("reward_model"), *flags) as server:
        yield f"{server.url}/v1#reward_model", folder, known


def test_a_served_judge_says_how_probable_its_verdicts_are(tmp_path):
    question = "Which is the better summary, m or M? Answer with one letter."
    with vllm_server("smollm2", tmp_path) as server:
        client = ChatClient.from_spec(f"{server.url}/v1#smollm2", timeout=600)
        reply = client.complete([{"role": "user", "content": question}], logprobs=5, max_tokens=1)
    assert reply.logprobs is not None
    (alternatives,) = reply.logprobs
    assert len(alternatives) == 5 and reply.text in alternatives
    assert 0 < sum(math.exp(value) for value in alternatives.values()) <= 1 + 1e-4


def tiny_policy(folder: Path) -> str:
    """A model of a head size that vLLM computes on a CPU."""
    return tiny_model(folder, hidden_size=128, head_dim=32)


def policy_run(folder: Path, **settings: object) -> Popen:
    sizes = {"max_new_tokens": 16, "micro_batch_size": 4, "ppo_epochs": 1}
    chosen = tiny_flags(folder, model=folder / "policy", output_dir=folder / "run", **sizes, **settings)
    return start_command("python", "nl_gradient_policy_optimization/slf5k/train.py", *chosen, OMP_NUM_THREADS="1")


def when_finished(folder: Path, step: int, run: Popen) -> None:
    """Wait until the run has logged so many steps."""
    log = folder / "run" / "metrics.jsonl"
    while not (log.exists() and len(log.read_text().splitlines()) >= step):
        assert run.poll() is None, run.communicate()[0]
        time.sleep(0.05)


def test_a_policy_samples_from_a_server_that_is_killed_twice(tmp_path):
    """Six steps: an absence beyond the deadline ends the run, one within it is waited for; no step is lost."""
    server = vllm_server(tiny_policy(tmp_path / "policy"), tmp_path, "--dtype", "float32")
    settings = {"max_steps": 6, "generation": "vllm_server", "vllm_url": server.url}
    try:
        server.start()
        run = policy_run(tmp_path, **settings, vllm_timeout=40)
        when_finished(tmp_path, 2, run)
        server.kill()
        assert f"{server.url} has not answered for 40 s" in all_said(run, 2)
        finished = len(rows(tmp_path / "run" / "metrics.jsonl"))
        assert (tmp_path / "run" / f"checkpoint-{finished}").is_dir()
        before = rows(tmp_path / "run" / "rollouts.jsonl")

        server.start()
        run = policy_run(tmp_path, **settings, vllm_timeout=900)
        when_finished(tmp_path, min(finished + 2, 5), run)
        server.kill()
        time.sleep(3)
        server.start(seconds=0)
        all_said(run)
    finally:
        server.kill()
    log = rows(tmp_path / "run" / "metrics.jsonl")
    print("\n", [row["sampler/difference"] for row in log], [row["kl/full"] for row in log])
    assert [row["step"] for row in log] == [1, 2, 3, 4, 5, 6]
    assert all(row["sampler/difference"] < 1e-4 for row in log)
    assert log[-1]["kl/full"] > 0.01  # the adapter that sampled is not the base model
    assert rows(tmp_path / "run" / "rollouts.jsonl")[: len(before)] == before


def test_a_served_reward_model_is_a_critic_with_rollouts_ahead(tmp_path, reward_model):
    """It answers as it does in process, and a run learns from what it says."""
    spec, folder, known = reward_model
    prompt = folder / "reward_prompt.txt"
    tiny_policy(tmp_path / "policy")
    task = get_task("slf5k")
    asked = ([task.prompt(r) for r in known.values()], [task.response(r) for r in known.values()])
    served = load_critic(spec, "slf5k", prompt=str(prompt), timeout=600)(*asked)
    assert served == load_critic(str(folder), "slf5k")(*asked)
    settings = {"critic": spec, "critic_prompt": prompt, "rollouts_ahead": True, "max_critic_failures": 1}
    all_said(policy_run(tmp_path, **settings, max_steps=3, critic_timeout=600))
    rollouts = rows(tmp_path / "run" / "rollouts.jsonl")
    critiques = {record["textual_feedback"] for record in known.values()}
    read = [row for row in rollouts if row["error"] is None]
    print(f"\n{len(read)} of {len(rollouts)} critiques could be read")
    assert len(rollouts) == 12 and any(row["critique"] in critiques for row in read)


def test_a_served_reward_model_quotes_exactly_by_a_grammar(reward_model):
    """Of responses it never saw, too, where it would quote what it knows by heart."""
    spec, folder, known = reward_model
    task = get_task("slf5k")
    learnt = [task.response(record) for record in known.values()]
    unseen = [text.replace("dog", "hound").replace("car", "van").replace("house", "flat") for text in learnt]
    unseen += ['He said "no"\n and\tleft.', "é 漢字 😀 \\n it.", "x"]
    responses, prompts = learnt + unseen, [task.prompt(next(iter(known.values())))] * (len(learnt) + len(unseen))
    exact = {}
    for constrained in ("none", "quotes"):
        critic = load_critic(
            spec, "slf5k", prompt=str(folder / "reward_prompt.txt"), constrained=constrained, timeout=600, concurrency=1
        )
        start = time.monotonic()
        given = critic(prompts, responses)
        seconds = (time.monotonic() - start) / len(given)
        read = [(f, text) for f, text in zip(given, responses, strict=True) if isinstance(f, Feedback)]
        exact[constrained] = [span in text for f, text in read for span in f.good + f.poor]
        print(f"\n{constrained}: {len(read)} of {len(given)} readable, {sum(exact[constrained])} of", end=" ")
        print(f"{len(exact[constrained])} spans exact, {seconds:.2f} s per reply")
    assert not all(exact["none"])
    assert len(read) >= len(learnt) and exact["quotes"] and all(exact["quotes"])
