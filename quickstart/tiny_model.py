"""A tiny random model with SmolLM2's tokenizer, for the smoke run: every step is real, nothing it says makes sense.

python quickstart/tiny_model.py runs/smoke/tiny_model
"""

import argparse

from text2grad.errors import command


@command
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="where it is written")
    folder = parser.parse_args().folder
    from text2grad.models.tiny import make_tiny_model  # torch, which --help does not need

    make_tiny_model(folder)


if __name__ == "__main__":
    main()
