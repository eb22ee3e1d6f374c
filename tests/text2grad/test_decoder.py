"""The fast decoder against transformers' own forward pass: same log-probabilities, same distribution."""

import pytest
import torch
from peft import IA3Config, LoraConfig, PromptTuningConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

import text2grad.models.decoder as decoder_module
from tests.tiny import FAMILIES, SIZES, adapted, randomised, reference_logprobs
from text2grad.models.adapters import merged_weight
from text2grad.models.decoder import Decoder, Rows, Together, draw, supports

PROMPTS = [[5, 9, 2, 7, 11], [3, 4], [5, 9, 2, 7, 8, 1], [60, 61, 62, 63, 64, 65, 66, 67]]


def check_logprobs(rows, model, prompts, temperature: float = 1.0) -> None:
    """What a decoder says of its samples is what the forward pass says."""
    for sampled, prompt in zip(rows, prompts, strict=True):
        expected = reference_logprobs(model, prompt, sampled.ids, temperature)
        torch.testing.assert_close(torch.tensor(sampled.logprobs), expected, atol=2e-5, rtol=1e-5)


ON_A_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@pytest.mark.parametrize("ends", [[], list(range(0, 97, 12))], ids=["to the limit", "rows leave early"])
@pytest.mark.parametrize(
    ("device", "together"), [("cpu", False), ("cpu", True), pytest.param("cuda", True, marks=ON_A_GPU)]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_are_those_of_the_forward_pass_in_every_family(family, device, together, ends):
    model = randomised(FAMILIES[family]())
    assert supports(model)
    torch.manual_seed(4)
    decoder = Decoder(model.to(device))
    sample = decoder._sample_together if together else decoder.sample
    rows = sample(PROMPTS * 3, 40, ends, None, 0.7)
    assert all(token not in ends for row in rows for token in row.ids[:-1])
    assert all(len(row.ids) == 40 or row.ids[-1] in ends for row in rows)
    assert (len({len(row.ids) for row in rows}) > 1) == bool(ends)
    check_logprobs(rows, model.cpu(), PROMPTS * 3, 0.7)


def test_bfloat16_works_on_processors_that_know_nothing_of_it():
    (row,) = Decoder(randomised(FAMILIES["llama"](), 0.05).bfloat16()).sample(PROMPTS[:1], 8, [], None, 1.0)
    assert len(row.ids) == 8 and max(row.logprobs) <= 0


def test_an_adapter_that_is_switched_off_is_not_folded_in():
    model = adapted(randomised(FAMILIES["llama"]())).eval()
    layer = model.get_base_model().model.layers[0].mlp.up_proj
    with model.disable_adapter():
        assert torch.equal(merged_weight(layer), layer.get_base_layer().weight)
    assert not torch.equal(merged_weight(layer), layer.get_base_layer().weight)


@pytest.mark.parametrize(
    ("config", "folded"),
    [
        (LoraConfig(target_modules=["q_proj", "lm_head"], use_rslora=True), True),
        (LoraConfig(target_modules=["q_proj"], modules_to_save=["embed_tokens", "lm_head", "norm"]), True),
        (LoraConfig(target_modules=["q_proj"], use_dora=True), False),
        (LoraConfig(target_modules=["q_proj"], lora_bias=True), False),
        (LoraConfig(target_modules=["embed_tokens"]), False),
        (IA3Config(target_modules=["q_proj"], feedforward_modules=[]), False),
        (PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4), False),
    ],
)
def test_an_adapter_that_cannot_be_folded_in_is_left_to_generate(config, folded):
    model = get_peft_model(randomised(FAMILIES["llama"]()), config).eval()
    for parameter in filter(lambda each: each.requires_grad, model.parameters()):
        torch.nn.init.normal_(parameter, std=0.2)
    assert supports(model) == folded
    torch.manual_seed(3)
    (sampled,) = Decoder(model.get_base_model()).sample(PROMPTS[:1], 12, [])
    apart = (torch.tensor(sampled.logprobs) - reference_logprobs(model, PROMPTS[0], sampled.ids)).abs().max()
    assert (apart < 1e-4) == folded


def test_a_gpu_is_asked_nothing_for_each_token():
    """What the same loop asks on a CPU: whether all have ended, every 16 tokens, and the ids at the end."""
    decoder, asked = Decoder(randomised(FAMILIES["qwen2"]())), []
    for limit in (2, 15):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            decoder._sample_together(PROMPTS, limit, [], None, 1.0)
        asked.append(sum(event.name in ("aten::item", "aten::nonzero") for event in profile.events()))
    assert asked[0] == asked[1]


@pytest.mark.parametrize(
    ("device", "kind", "sizes"),
    [
        ("cpu", Rows, {"room": 1}),
        ("cpu", Together, {"room": 8, "width": 5}),
        pytest.param("cuda", Together, {"room": 8, "width": 5}, marks=ON_A_GPU),
    ],
)
def test_tokens_that_are_taken_back_leave_no_trace(device, kind, sizes):
    """Each row reads guesses, keeps some of them, and goes on; a row leaves, and the room has to grow."""
    model = randomised(FAMILIES["llama"]()).to(device)
    decoder = Decoder(model)
    rows = kind(decoder, PROMPTS, **sizes)
    check_guesses(rows, model, PROMPTS)
    if kind is Together:
        assert not rows.restart([[1] * 60], room=8)
        assert rows.restart(PROMPTS[3:0:-1], room=8)
        check_guesses(rows, model, PROMPTS[3:0:-1])


def check_guesses(rows, model, prompts) -> None:
    """Rows say what the forward pass says, whatever was read before and taken back."""
    rows.prefill()
    written = [list(prompt) for prompt in prompts]
    torch.manual_seed(8)
    for read, kept in (([1, 3, 4, 3], [1, 3, 2, 3]), ([3, 1, 3], [3, 1, 1]), ([2, 2, 5], [2, 1, 3])):
        read = read[: len(written)]
        guesses = [torch.randint(0, 97, (count,)).tolist() for count in read]
        states = rows.extend(guesses).split(read)
        for ids, own, found in zip(written, guesses, states, strict=True):
            with torch.no_grad():
                expected = model(torch.tensor([ids + own], device=model.device)).logits[0, -len(own) :]
            torch.testing.assert_close(rows.decoder.head(found), expected, atol=2e-4, rtol=1e-4)
        kept = kept[: len(written)]
        rows.accept(kept)
        written = [ids + own[:count] for ids, own, count in zip(written, guesses, kept, strict=True)]
        if len(written) == 4:
            rows.keep([0, 2, 3])
            written = [written[row] for row in (0, 2, 3)]


def test_prompts_that_do_not_fit_together_are_read_in_turn(monkeypatch):
    """Whatever is read at once, each row has the probabilities of its own prompt."""
    model = randomised(FAMILIES["llama"]())
    for at_once in (1, 8, 4096):
        monkeypatch.setattr(decoder_module, "_AT_ONCE", at_once)
        torch.manual_seed(7)
        check_logprobs(Decoder(model).sample(PROMPTS, 6, []), model, PROMPTS)


def test_draws_follow_the_distribution():
    probabilities = torch.tensor([0.5, 0.0, 0.3, 0.2])
    torch.manual_seed(6)
    draws = draw(probabilities.log().expand(20_000, -1))
    shares = torch.bincount(draws, minlength=4) / 20_000
    assert shares[1] == 0
    torch.testing.assert_close(shares, probabilities, atol=0.015, rtol=0)


def test_other_architectures_and_quantised_weights_are_left_to_generate():
    sliding = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=4))
    assert not supports(sliding)
    quantised = FAMILIES["llama"]()
    quantised.is_quantized = True  # what transformers sets
    assert not supports(quantised)
    assert not supports(LlamaForCausalLM(LlamaConfig(**SIZES, hidden_act="gelu")))
