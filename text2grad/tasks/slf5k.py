"""SLF5K: summaries of Reddit posts. ``{"t3_…": {"post" (or "Post"), "generated_summary", "ideal_human_summary"?}}``."""

from __future__ import annotations

from collections.abc import Mapping

from text2grad.tasks.base import Record, Task, content_id, text_field


class SLF5K(Task):
    name = "slf5k"
    id_fields = ("id",)
    prompt_noun = "post"
    max_response_tokens = 128
    programmatic_critic = "text2grad.critics.programs.slf5k.critic:SummaryCritic"
    format_help = "see the slf5k format in README.md"
    places: Mapping[str, str] = {
        "annotation": "rm_data_anno/slf5k/prompts",
        "reward_model": "nl_reward_model/slf5k/prompts",
        "policy": "text2grad/tasks/slf5k.policy.txt",
        "judge": "evaluation/slf5k/judge_prompt.txt",
        "reflect": "nl_gradient_policy_optimization/baselines/slf5k/reflect.txt",
        "teacher": "nl_gradient_policy_optimization/slf5k/prompts/teacher.txt",
        "critique": "nl_gradient_policy_optimization/slf5k/prompts/critique.txt",
        "reward_model_config": "nl_reward_model/slf5k/config.yaml",
        "policy_config": "nl_gradient_policy_optimization/slf5k/config.yaml",
    }

    def prompt(self, record: Record) -> str:
        post = text_field(record, "post", "Post", "prompt").strip()
        return post.removesuffix("TL;DR:").rstrip()

    def response(self, record: Record) -> str:
        return text_field(record, "generated_summary")

    def with_response(self, record: Record, response: str) -> Record:
        return {**record, "generated_summary": response}

    def reference(self, record: Record) -> str | None:
        return record.get("ideal_human_summary") or None

    def id_of(self, record: Record) -> str:
        return str(record.get("id") or content_id("post", self.prompt(record) + (self.response_if_any(record) or "")))
