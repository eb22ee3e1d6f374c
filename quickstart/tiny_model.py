"""A tiny random model with SmolLM2's tokenizer, for the smoke run: every step is real, nothing it says makes sense.

python quickstart/tiny_model.py runs/smoke/tiny_model
"""

import argparse
from pathlib import Path

from text2grad.errors import command


def make_tiny_model(folder: str | Path) -> None:
    """Write the model and its tokenizer, unless the folder is there."""
    if Path(folder).is_dir():
        return
    import torch  # which --help does not need
    from transformers import LlamaConfig, LlamaForCausalLM

    from text2grad.models.loading import load_tokenizer

    tokenizer = load_tokenizer("smollm2")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@command
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="where it is written")
    make_tiny_model(parser.parse_args().folder)


if __name__ == "__main__":
    main()
