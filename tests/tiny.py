"""Tiny random models and small real tokenizers of the three families, made on the spot."""

import json
from functools import lru_cache, partial
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from text2grad.models import PLAIN_CHAT_TEMPLATE

CORPUS = [
    "My sister borrowed my car without asking and got a parking ticket. Should I make her pay for it?",
    "I have worked at the same company for three years; last week my boss told me that I would not get the raise.",
    "def add(a, b):\n    # naïve – but fine\n    return a + b\n\nprint(add(1, 2))",
    "Our neighbour’s dog barks all night long… we can’t sleep! “Talk to them,” says my wife 🐶🎉.",
    "我的室友从来不洗碗。我应该怎么办？ 친구가 약속을 잊었어요. これはペンです。 e\u0301te\u0301 ñandú straße",
    '{"textual_feedback": "The summary names the cause.", "good_spans": ["the raise"], "poor_spans": []}',
]
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]


@lru_cache
def tokenizer(family: str = "byte", vocab_size: int = 600) -> PreTrainedTokenizerFast:
    """A tokenizer trained on ``CORPUS``: ``byte`` (GPT-2, Llama 3), ``sentencepiece`` (Llama 2), or ``wordpiece``."""
    if family == "byte":
        raw = Tokenizer(models.BPE())
        raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        raw.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=SPECIAL, initial_alphabet=alphabet)
    elif family == "sentencepiece":
        raw = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
        raw.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        raw.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
        raw.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
        fallback = [f"<0x{byte:02X}>" for byte in range(256)]
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size + 256, special_tokens=SPECIAL + fallback, limit_alphabet=70, show_progress=False
        )
    else:
        raw = Tokenizer(models.WordPiece(unk_token="<unk>"))
        raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        raw.decoder = decoders.WordPiece(prefix="##")
        trainer = trainers.WordPieceTrainer(vocab_size=vocab_size, special_tokens=SPECIAL)
    raw.train_from_iterator(CORPUS, trainer)
    if family == "sentencepiece":  # the byte tokens write bytes, so they must not be special
        value = json.loads(raw.to_str())
        value["added_tokens"] = [added for added in value["added_tokens"] if added["content"] in SPECIAL]
        raw = Tokenizer.from_str(json.dumps(value))
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>",
        padding_side="left", chat_template=PLAIN_CHAT_TEMPLATE, model_max_length=2048,
    )  # fmt: skip


def model(family: str = "llama", seed: int = 0, **overrides):
    """A random two-layer ``llama``, ``mistral``, ``qwen3``, ``gemma2`` or ``gpt2`` for ``tokenizer("byte")``."""
    tok = tokenizer("byte")
    shape = {
        "vocab_size": len(tok), "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 2048,
    }  # fmt: skip
    if family == "gpt2":
        shape = {"vocab_size": len(tok), "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 2048}
    ids = {"pad_token_id": tok.pad_token_id, "bos_token_id": tok.bos_token_id, "eos_token_id": tok.eos_token_id}
    config = AutoConfig.for_model(family, **{**shape, **ids, **overrides})
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def tiny_model(folder: str | Path, family: str = "llama", seed: int = 0, **overrides) -> str:
    """Save a random model and its tokenizer to ``folder``; returns the folder as text."""
    model(family, seed=seed, **overrides).save_pretrained(folder)
    tokenizer("byte").save_pretrained(folder)
    return str(folder)


SIZES = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128,
}  # fmt: skip
LONG_ROPE = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip


def sized(family: str, **options):
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **SIZES, **options))


FAMILIES = {
    "llama": partial(sized, "llama", tie_word_embeddings=True),
    "llama, bias, long rope": partial(sized, "llama", attention_bias=True, mlp_bias=True, rope_parameters=LONG_ROPE),
    "mistral": partial(sized, "mistral", sliding_window=None),
    "qwen2": partial(sized, "qwen2"),
}


def randomised(model, scale: float = 0.3):
    """With weights large enough that every part of the model shows in what it says."""
    torch.manual_seed(1)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=scale)
    return model.eval()


def adapted(model, dropout: float = 0.0, **options):
    """With a LoRA adapter on all layers that changes what the model says."""
    from peft import LoraConfig, get_peft_model  # which not every environment has

    torch.manual_seed(5)
    model = get_peft_model(
        model, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM", lora_dropout=dropout, **options)
    )
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    return model


def reference_logprobs(model, prompt: list[int], ids: list[int], temperature: float = 1.0) -> torch.Tensor:
    """log π of a response's tokens after a prompt's, by transformers' own forward pass on it alone."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1].float() / temperature
    return logits.log_softmax(-1).gather(-1, torch.tensor(ids)[:, None]).squeeze(-1)
