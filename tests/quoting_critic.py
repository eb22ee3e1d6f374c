"""A critic of plain text, named by its file, and what it is asked about inside other frameworks."""

from text2grad.feedback import Feedback, FeedbackError

TEXTS = ["a good and a bad one", "good", "neither", "silence"]
CRITIC = f"{__file__}:judge"


def judge(prompt: str, response: str) -> Feedback | FeedbackError:
    if response == "silence":
        return FeedbackError("nothing to say")
    return Feedback(f"on {prompt}", good=["good"], poor=["bad"])


def encode(text: str) -> list[int]:
    from tests.tiny import tokenizer  # needs torch, which not every environment has

    return tokenizer()(text, add_special_tokens=False)["input_ids"]


def signs(text: str) -> list[float]:
    """+1 on the tokens of good, −1 on those of bad, from the characters; 0 on the others."""
    from tests.tiny import tokenizer

    values, position = [], 0
    for token in encode(text):
        piece = tokenizer().decode([token])
        start, position = position + len(piece) - len(piece.lstrip()), position + len(piece)
        inside = [
            word in text and text.find(word) <= start and position <= text.find(word) + len(word)
            for word in ("good", "bad")
        ]
        values.append(1.0 if inside[0] else -1.0 if inside[1] else 0.0)
    return values
