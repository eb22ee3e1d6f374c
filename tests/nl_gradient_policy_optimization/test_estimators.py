"""The methods without a value head: what each makes of the same feedback, by hand and by published code."""

import math
from copy import copy
from types import SimpleNamespace

import pytest
import torch
from torch import tensor

from nl_gradient_policy_optimization.algorithms import algorithm_class
from nl_gradient_policy_optimization.batch import Batch
from nl_gradient_policy_optimization.optimize import optimize
from nl_gradient_policy_optimization.rollouts import Rollout, RolloutFeedback
from tests.tiny_runs import SpokenRewards, rows, tiny_config
from text2grad.advantages import prime_tokens, verdict_advantages
from text2grad.errors import InputError
from text2grad.tasks import get_task

DELTAS = [[1.0, -1.0, 0.0, 1.0], [0.0, 1.0, 1.0], [-1.0, 0.0], [1.0, 1.0, 1.0, 0.0]]
SCORES = [1.0, 0.0, 0.5, 1.0]
GROUPED = ["verdict", "grpo", "dr_grpo", "rtt", "papo", "pure", "prime"]


def batch_of(scores=SCORES, failed: int | None = None, source: str = "given") -> Batch:
    """Four responses to two prompts, with δ and verdicts; no KL, and one chance in ten to end anywhere."""
    rollouts = [Rollout("a", "p", {}, [1], [5] * len(row), "x", [], [], True) for row in DELTAS]
    batch = Batch(rollouts, 0, torch.float64, group_size=2)
    feedback = [
        RolloutFeedback(list(row), list(row), score=score, score_source=source)
        for row, score in zip(DELTAS, scores, strict=True)
    ]
    if failed is not None:
        feedback[failed] = RolloutFeedback([0.0] * len(DELTAS[failed]), error="no reply")
    batch.receive(feedback)
    batch.put("at", torch.full((4, 4, 2), 0.05).log())  # of two tokens that end
    return batch


def ready(name: str, size: int = 2, **settings):
    """A method in a run of its own."""
    algorithm = algorithm_class(name)(**settings)
    config = SimpleNamespace(rollouts_per_prompt=size, gamma=1.0, lam=0.95)
    algorithm.run = SimpleNamespace(config=config, reduce=lambda tensor: tensor)
    return algorithm


def advantages_of(method, batch: Batch, size: int = 2, penalty: float = 0.0, **settings) -> torch.Tensor:
    """Advantages where the KL penalty takes ``penalty`` times a row's number from each token."""
    algorithm = ready(method, size, **settings) if isinstance(method, str) else method
    batch.rewards = (algorithm.token_rewards(batch) - penalty * torch.arange(4)[:, None]) * batch.mask
    return algorithm.advantages(batch)


def close(found: torch.Tensor, expected: list) -> None:
    torch.testing.assert_close(found, tensor(expected, dtype=found.dtype), rtol=1e-4, atol=1e-4)


def test_rtt_as_published_is_its_authors_code():
    found = advantages_of("rtt", batch_of(), rtt_end_token=True)
    close(found[0], [1.1594, -0.0467, 0.5563, 1.1594])
    close(found[3], [0.9958, 0.9958, 0.9958, -0.1589])


def test_rtt_leaves_the_end_token_to_the_verdict():
    found = advantages_of("rtt", batch_of())
    assert found[0, 3] == pytest.approx(math.sqrt(0.5), abs=1e-3) and found[3, 3] == found[3, 0]


def test_prime_is_its_published_code_whitened():
    found = advantages_of("prime", batch_of(scores=[1.0, 0.0, 0.0, 1.0]))
    returns = tensor([-2 / 3, -1.75, 7 / 6, 25 / 12, 0.25, 7 / 6, 1 / 12, -3.5, -1.25, 6, 4.25, 2.5, 0.75]).double()
    whitened = (returns - returns.mean()) / returns.std(unbiased=False)
    torch.testing.assert_close(found[batch_of().mask > 0], whitened, rtol=1e-4, atol=1e-4)


def test_a_failed_response_is_not_in_primes_mean():
    found = prime_tokens(tensor([[3.0], [0.0], [1.0], [0.0]]), tensor([[1.0], [0.0], [1.0], [1.0]]), 2)
    assert found.tolist() == [[0.0], [0.0], [1.0], [-1.0]]  # nothing to compare with; (1 − ½)·2


def test_grpo_and_dr_grpo_differ_by_the_deviation():
    close(advantages_of("grpo", batch_of(), outcome="verdict")[:, 0], [0.7070, -0.7070, -0.7069, 0.7069])
    close(advantages_of("dr_grpo", batch_of(), outcome="verdict")[:, 0], [0.5, -0.5, -0.25, 0.25])
    close(advantages_of("dr_grpo", batch_of(), outcome="sum")[:, 0], [-0.5, 0.5, -2, 2])
    close(advantages_of("dr_grpo", batch_of(), outcome="mean")[:, 0], [-5 / 24, 5 / 24, -5 / 8, 5 / 8])


@pytest.mark.parametrize("name", ["grpo", "rtt", "papo"])
def test_a_group_of_equal_worth_learns_nothing_from_its_kl_penalties(name):
    batch, settings = batch_of([-1.0, -1.0, 0.5, 1.0]), {"outcome": "verdict"}
    pairs = {n: [advantages_of(name, batch, n, penalty, **settings) for penalty in (0.0, 0.1)] for n in (2, 4)}
    torch.testing.assert_close(pairs[2][1][:2], pairs[2][0][:2])
    assert (pairs[4][1] - pairs[4][0]).abs().max() > 0.01  # where worth differs, the penalty counts beside it


def test_a_step_of_equal_verdicts_learns_nothing_from_its_kl_penalties():
    found = advantages_of("verdict", batch_of([1.0] * 4), size=1, penalty=0.01, token_weight=0.0)
    assert found.abs().max() < 1e-3


def test_without_groups_a_verdict_at_the_steps_mean_keeps_its_kl_penalty():
    batch = batch_of([1.0, -1.0, 0.0, 0.0])
    found = advantages_of("grpo", batch, size=1, penalty=0.1, outcome="verdict")[:, 0]
    worths = tensor([1.0, -1.1, -0.2, -0.3]).double()
    close(found, ((worths - worths.mean()) / (worths.std() + 1e-4)).tolist())


def test_prime_learns_nothing_from_kl_penalties_where_nothing_was_told():
    batch = batch_of([1.0] * 4)
    batch.deltas = batch.given = torch.zeros_like(batch.deltas)
    assert not advantages_of("prime", batch, penalty=1e-3).any()


def test_where_no_span_tells_tokens_apart_kl_penalties_move_none():
    batch = batch_of()
    batch.deltas = batch.given = torch.full_like(batch.given, 0.5) * batch.mask  # praises everything
    batch.old_logprobs = torch.zeros(4, 4)
    penalties = 0.01 * torch.arange(16.0).view(4, 4)
    alone, beside = ready("verdict", token_weight=0.0), ready("verdict")
    batch.rewards = (batch.given - penalties) * batch.mask
    torch.testing.assert_close(beside.advantages(batch)[:, 0], alone.advantages(batch)[:, 0])


def test_a_teacher_that_changes_labels_leaves_the_verdict_alone():
    batch = batch_of()
    batch.old_logprobs, batch.extra["teacher_logprobs"] = torch.zeros(4, 4), torch.full((4, 4), 1.0)
    expected, settings = advantages_of("verdict", batch, token_weight=0.0), {"token_weight": 0.0, "teacher": "weight"}
    torch.testing.assert_close(advantages_of("verdict_teacher", batch, **settings), expected)


def test_papo_compares_spans_among_right_responses_alone():
    plain = advantages_of("grpo", batch_of(), outcome="verdict")
    found = advantages_of("papo", batch_of())
    torch.testing.assert_close(found[:2], plain[:2])  # only one of the two is right: nothing to compare
    close((found - plain)[2:, 0], [-0.7070, 0.7070])  # both are, with mean δ −½ and ¾
    batch = batch_of()
    batch.given[2, 0] -= 1.0  # its length takes more than the verdict gives: one is right, there is nothing to compare
    torch.testing.assert_close(advantages_of("papo", batch), advantages_of("grpo", batch, outcome="verdict"))


def test_pure_is_the_worst_token_against_the_groups():
    # min-form with T near 0: −1 on the second token; 0 everywhere in the second response
    found = advantages_of("pure", batch_of())
    close(found[0], [-1, -1, 0, 0])
    close(found[1], [0.75, 0.5, 0.25, 0])


def test_capo_puts_the_outcome_on_every_token_of_a_response():
    batch = batch_of()
    batch.deltas = batch.deltas.clamp(max=0)  # votes leave penalties alone
    batch.given = batch.deltas.clone()
    batch.given[:, 0] += tensor([1.0, -1, -1, 1])  # wherever it lies, the outcome is the response's
    found = advantages_of("capo", batch)
    values = [1, 0, 1, 1, -1, -1, -1]  # of the first prompt's seven tokens, wherever a blamed one is
    mean = sum(values) / 7
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / 7) + 1e-4
    close(found[0], [(value - mean) / deviation for value in values[:4]])
    assert (found[1, :3] < found[0, :4].min()).all()  # a wrong answer's token is below a blamed one of a right answer
    batch.deltas, batch.given = torch.zeros_like(batch.deltas), torch.zeros_like(batch.given)
    batch.given[:, 0] = 1.0  # all right and without a fault: KL penalties alone move nothing
    assert not advantages_of("capo", batch, penalty=1e-3).any()


def test_the_verdict_method_is_its_formula_and_takes_one_response_a_prompt():
    batch = batch_of()
    for size in (1, 2):
        chances = torch.full((4, 4), 0.1)
        expected, _ = verdict_advantages(batch.deltas, batch.mask, batch.scores, batch.missing, chances, size)
        torch.testing.assert_close(advantages_of("verdict", batch, size), expected)


def test_without_a_verdict_and_missing_things_the_sum_is_what_a_response_is_worth():
    batch = batch_of(source="derived")
    found = {name: advantages_of("verdict", batch, outcome=name) for name in ("auto", "sum", "verdict")}
    assert torch.equal(found["auto"], found["sum"]) and not torch.equal(found["auto"], found["verdict"])
    batch.rollouts[0].feedback.missing = ["the date"]
    assert torch.equal(advantages_of("verdict", batch), found["verdict"])


def test_what_a_critic_can_say_is_remembered_after_a_restart(tmp_path):
    algorithm, resumed = ready("verdict"), ready("verdict")
    silent, telling = batch_of(source="derived"), batch_of()
    assert [algorithm.outcome_of(batch) for batch in (silent, telling, silent)] == ["sum", "verdict", "verdict"]
    algorithm.save(tmp_path)
    resumed.load(tmp_path)
    assert resumed.outcome_of(silent) == "verdict"
    algorithm = ready("verdict")
    advantages_of(algorithm, silent)  # sums are larger than verdicts: they say nothing of how much is usual
    algorithm.save(tmp_path)
    assert torch.equal(advantages_of(algorithm, telling), advantages_of("verdict", telling))
    changed = ready("verdict", outcome="verdict")
    changed.load(tmp_path)
    assert torch.equal(advantages_of(changed, telling), advantages_of("verdict", telling))


def test_a_step_that_tells_little_weighs_little_also_after_a_restart(tmp_path):
    algorithm, resumed = ready("verdict", token_weight=0.0), ready("verdict", token_weight=0.0)
    nearly_equal = batch_of(scores=[score / 100 for score in SCORES])
    usual, blown_up = advantages_of(algorithm, batch_of()), advantages_of(resumed, nearly_equal)
    algorithm.save(tmp_path)
    resumed.load(tmp_path)
    for each in (algorithm, resumed):
        torch.testing.assert_close(advantages_of(each, nearly_equal), usual / 100)
    torch.testing.assert_close(blown_up, usual, rtol=1e-3, atol=0)


def test_wishes_about_length_reach_the_verdict():
    batch = batch_of()
    batch.given[0, 3] -= 6.0  # the length limit cut it off
    plain, shaped = (advantages_of("verdict", each, token_weight=0.0) for each in (batch_of(), batch))
    assert plain[0, 0] > 0 > shaped[0, 0]


@pytest.mark.parametrize("name", GROUPED)
def test_a_failed_response_moves_nothing_and_is_no_baseline(name):
    found = advantages_of(name, batch_of(failed=1))
    assert found.isfinite().all() and (found[1] == 0).all()
    if name not in ("prime", "verdict"):  # one scales by n / (n − 1), one by the size of what there is
        assert found[0].abs().max() < 1.5


def test_a_verdict_needs_a_critic():
    with pytest.raises(InputError, match="no critic"):
        advantages_of("verdict", batch_of(scores=[None, 0.0, 0.5, 1.0]))


@pytest.mark.parametrize("name", [*GROUPED, "capo"])
def test_a_run_trains_and_logs_what_the_critic_says_of_the_whole(tmp_path, name):
    config = tiny_config(tmp_path, algorithm=name, rollouts_per_prompt=2, max_steps=1)
    optimize("slf5k", config)
    logged = rows(tmp_path / "run" / "rollouts.jsonl")
    assert all(-1 <= row["verdict"] <= 1 and row["verdict_source"] in ("given", "derived") for row in logged)
    assert any(row["missing"] for row in logged)
    policy = tmp_path / "run" / "policy"
    assert not (policy / "value_head.safetensors").exists() and "value_head" not in (policy / "README.md").read_text()


def test_where_responses_pass_or_fail_verdict_is_grpo_unless_a_weight_is_given(tmp_path, capsys):
    task = copy(get_task("slf5k"))
    task.passes_or_fails = True
    methods = {"verdict": {}, "grpo": {"outcome": "verdict"}, "weighted": {"token_weight": 1.0}, "usual": {}}
    trained = {}
    for name, settings in methods.items():
        algorithm = "grpo" if name == "grpo" else "verdict"
        wanted = {"algorithm": algorithm, "rollouts_per_prompt": 2, "output_dir": str(tmp_path / name), **settings}
        optimize("slf5k" if name == "usual" else task, tiny_config(tmp_path, **wanted), SpokenRewards())
        trained[name] = (tmp_path / name / "policy" / "adapter_model.safetensors").read_bytes()
    assert trained["verdict"] == trained["grpo"] != trained["weighted"] == trained["usual"]
    assert capsys.readouterr().out.count("compared, as by grpo; --token_weight 1 adds spans") == 1
    assert [get_task(name).passes_or_fails for name in ("slf5k", "kodcode", "ultrafeedback")] == [False, True, False]
