"""A critic of plain text, as a file of its own would hold it, and what it is asked about inside other frameworks."""

TEXTS = ["a good and a bad one", "good", "neither", "silence"]
CRITIC = """
from text2grad.feedback import Feedback, FeedbackError

def judge(prompt, response):
    if response == "silence":
        return FeedbackError("nothing to say")
    return Feedback(f"on {prompt}", good=["good"], poor=["bad"])
"""
