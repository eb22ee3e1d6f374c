"""The README.md of annotated data on the hub: who gave the feedback, asked how, at what cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from text2grad.tasks import Task
from text2grad.tasks.commands import stage_command


def data_card(task: Task, settings: Mapping[str, Any], critic: str, prompt: str, report: Mapping[str, Any]) -> str:
    """The card, in the form that hubs read.

    Args:
        settings: what decided the annotation (model, variant, temperature, …).
        prompt: the text of the prompt; empty for a critic that has none.
        report: :func:`rm_data_anno.fidelity.annotation_report`, and what was paid.
    """
    records, spans, paid = report["records"], report["spans"], report.get("paid") or {}
    cost = f"{paid['cost_usd']:.4f} USD" if paid.get("cost_usd") else "none, or not known"
    asked = "\n".join(f"- {name}: {value}" for name, value in settings.items() if name not in ("stage", "task"))
    critique = "a critique of it, and" if report["critique_words"] else "and, without a critique,"
    shown = f"\n## Prompt\n\n~~~text\n{prompt.strip()}\n~~~\n" if prompt else ""
    return f"""---
tags: [text2grad, {task.name}]
---

# Feedback on responses of {task.name}

Each record holds a prompt, a response, {critique} quotes of what is good and poor in it.
[Text2Grad](https://arxiv.org/abs/2505.22338) trains reward models and policies with such records.

- feedback from: {critic}
{asked}
- records: {records["annotated"]} annotated, {records["failed"]} failed
- spans: {spans["kept"]} kept of {spans["offered"]} offered
- cost: {cost}

The feedback is a model's or a program's unless the lines above name people. It was checked for exact quotes, not for
being right.
{shown}
## Using it

```bash
{stage_command("reward_model", task)} --data_path THIS_REPOSITORY --output_dir REWARD_MODEL
```
"""
