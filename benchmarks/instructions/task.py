"""Requests with rules that a program checks. ``{"id", "prompt", "rules"}``, as ``make_requests.py`` writes them."""

from text2grad.tasks import PlainTask

TASK = PlainTask("instructions", passes_or_fails=True)
