"""Rows laid end to end against transformers' own forward pass: the same states, losses and gradients."""

import copy

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.tiny import FAMILIES, SIZES, adapted, randomised
from text2grad.models.packed import pack
from text2grad.models.trees import shared_prefixes

IDS = torch.randint(3, 97, (4, 11), generator=torch.Generator().manual_seed(0))
MASK = torch.tensor([[0] * 3 + [1] * 8, [1] * 11, [0] * 5 + [1] * 4 + [0] * 2, [1] * 2 + [0] * 9])
TARGET = torch.randn(6, 11, 97, generator=torch.Generator().manual_seed(1))
ONE, OTHER = [5, 6, 7, 8, 9, 20, 21], [4, 6, 11, 12, 13, 14, 15]
GROUPS = torch.tensor(
    [[*ONE, 22, 23], [*ONE, 30, 0], [*OTHER, 40, 41], [*ONE, 22, 23], [*OTHER, 50, 0], [0, 0, *range(60, 67)]]
)
"""Padded with 0; two prompts of seven tokens with responses, two of them equal, and a row that begins like no other."""


def loss_and_gradients(model, ids=IDS, mask=MASK):
    """The logits at the tokens against a fixed target, and every gradient."""
    model.zero_grad()
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    logits = model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False).logits
    target = TARGET.view(-1, 97)[: ids.numel()].view(*ids.shape, 97)
    loss = ((logits - target) ** 2 * mask[..., None]).mean()
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_alike(ours, theirs):
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-6, atol=1e-6)
    assert ours[1].keys() == theirs[1].keys() and ours[1]
    for name, gradient in theirs[1].items():
        scale = float(gradient.abs().max()) or 1.0
        torch.testing.assert_close(ours[1][name] / scale, gradient / scale, rtol=0, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["all weights", "adapter"])
def test_loss_and_gradients_are_those_of_transformers(family, kind, packs):
    plain = randomised(FAMILIES[family]())
    fast = pack(copy.deepcopy(plain))
    if kind == "adapter":
        plain, fast = adapted(plain), adapted(fast)
    theirs = loss_and_gradients(plain.train())
    assert not packs
    assert_alike(loss_and_gradients(fast.train()), theirs)
    assert packs


def test_what_rows_begin_with_is_read_once(packs):
    rows = [row[row > 0] for row in GROUPS]
    ids, lengths = torch.cat(rows), [len(row) for row in rows]
    segments, order, read = shared_prefixes(ids, lengths)
    assert sorted(map(sorted, segments)) == [[1, 2, 2, 7], [1, 2, 7], [7]]  # 29 tokens of 50
    assert len(order) == 29 and torch.equal(ids[order][read], ids)
    assert shared_prefixes(ids[:16], [8, 8])[0] == [[8], [8]]  # nothing in common
    assert shared_prefixes(torch.arange(7).repeat(3), [7] * 3)[0] == [[6, 1, 1, 1]]  # each keeps a token of its own

    plain = randomised(FAMILIES["llama"]())
    fast = adapted(pack(copy.deepcopy(plain))).train()
    ours = loss_and_gradients(fast, GROUPS, (GROUPS > 0).long())
    assert_alike(ours, loss_and_gradients(adapted(plain).train(), GROUPS, (GROUPS > 0).long()))
    assert packs


def test_without_its_adapter_the_model_is_its_base(packs):
    base = randomised(FAMILIES["llama"]())
    fast = adapted(pack(copy.deepcopy(base)))
    with torch.no_grad(), fast.disable_adapter():
        ours = fast(input_ids=IDS, attention_mask=MASK, use_cache=False).logits
    with torch.no_grad():
        theirs = base(input_ids=IDS, attention_mask=MASK, use_cache=False).logits
    assert packs
    torch.testing.assert_close(ours[MASK.bool()], theirs[MASK.bool()], rtol=1e-4, atol=1e-5)


def test_dropout_and_dora_are_left_to_peft():
    """With what the fused product does not compute, PEFT's own layer runs: equal seeds give equal losses."""
    for dropout, options in ((0.5, {}), (0.0, {"use_dora": True})):
        plain = adapted(randomised(FAMILIES["llama"]()), dropout, **options).train()
        fast = copy.deepcopy(plain)
        pack(fast.get_base_model())
        if dropout:  # one draw for each padded position there, for each token here: compare without randomness
            for model in (plain, fast):
                model.eval()
        assert_alike(loss_and_gradients(fast), loss_and_gradients(plain))
        if dropout:
            fast.train()
            assert loss_and_gradients(fast)[0] != loss_and_gradients(fast)[0]


def test_in_bfloat16_it_errs_no_more_than_transformers_does():
    exact = adapted(randomised(FAMILIES["llama"](), 0.1)).train()
    truth = torch.cat([gradient.flatten() for gradient in loss_and_gradients(exact)[1].values()])
    errors = []
    for fast in (False, True):
        model = randomised(FAMILIES["llama"](), 0.1).to(torch.bfloat16)
        model = adapted(pack(model) if fast else model).train()
        found = torch.cat([gradient.flatten() for gradient in loss_and_gradients(model)[1].values()]).float()
        errors.append(float((found - truth).norm() / truth.norm()))
    assert errors[1] < max(1.5 * errors[0], 0.02), errors


def test_what_only_transformers_gives_still_comes_from_there(packs):
    fast = pack(randomised(FAMILIES["llama"]()))
    with torch.no_grad():
        assert len(fast(input_ids=IDS, output_hidden_states=True).hidden_states) == 4
        assert fast(input_ids=IDS, use_cache=True).past_key_values is not None
        holes = MASK.clone()
        holes[1, 4] = 0
        fast(input_ids=IDS, attention_mask=holes, use_cache=False)
        fast(input_ids=IDS, position_ids=torch.arange(11).remainder(4)[None].expand(4, -1), use_cache=False)
        fast.generate(input_ids=IDS[1:2], max_new_tokens=3, do_sample=False)
        assert not packs
        fast(input_ids=IDS, use_cache=False)
        assert packs
    fast.gradient_checkpointing_enable()
    packs.clear()
    loss_and_gradients(fast.train())
    assert not packs


def test_packing_can_be_switched_off_and_copies_stay_independent(monkeypatch):
    model = pack(LlamaForCausalLM(LlamaConfig(**SIZES)))
    assert "forward" in vars(model.base_model)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
        assert model(input_ids=IDS, use_cache=False).logits.abs().max() > 0
        assert twin(input_ids=IDS, use_cache=False).logits.abs().max() == 0
    monkeypatch.setenv("TEXT2GRAD_PACKED", "0")
    assert "forward" not in vars(pack(LlamaForCausalLM(LlamaConfig(**SIZES))).base_model)
