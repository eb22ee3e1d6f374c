"""A policy's answers to MT-Bench: two turns, the second with the first in view.

    python evaluation/ultrafeedback/mt_bench_answers.py --questions question.jsonl --model smollm2 --system base \\
        --output_path answers.jsonl

Temperatures are MT-Bench's by category. The answers are in FastChat's format. A policy that was trained with words of
its own (``--policy_prompt``) is asked the first turn in these. The same command continues an interrupted run.
"""

from dataclasses import MISSING, dataclass

from evaluation.generate import answer_chats
from evaluation.ultrafeedback.mt_bench import ANSWER_TOKENS, TEMPERATURES, load_questions
from text2grad.configs import parse, setting
from text2grad.errors import InputError, command
from text2grad.models.answering import AnsweringConfig, Chat, SamplingConfig, load_policy
from text2grad.prompts import asking, carried_words
from text2grad.records import check_output, save_json
from text2grad.tasks import get_task
from text2grad.tasks.commands import quoted, say_next


@dataclass
class MtBenchAnswersConfig:
    """What is asked, and how it is answered; without a temperature, which is MT-Bench's own by category."""

    questions: str = setting(MISSING, "FastChat's question.jsonl", "--data_path")
    system: str = setting(MISSING, "the system's name")
    output_path: str = setting(MISSING, "the answers, a .jsonl file", "--output_file", "--output")
    limit: int | None = setting(None, "only the first so many questions")
    max_new_tokens: int = setting(ANSWER_TOKENS, "longest answer in tokens", "--max_response_tokens", "--max_tokens")
    top_p: float = setting(1.0, "sample from the smallest set of tokens with this probability")
    seed: int = setting(42, "each answer's randomness depends on this seed and the answer's id only")


@command
def main() -> None:
    config, answering = parse(MtBenchAnswersConfig, AnsweringConfig)
    check_output(config.output_path)
    questions = dict(list(load_questions(config.questions).items())[: config.limit])
    task = asking(get_task("ultrafeedback"), carried_words(answering.model))
    policy = load_policy(answering)

    def temperature(key: str) -> float:
        return TEMPERATURES.get(questions[key]["category"], 0.0)

    chats: dict[str, Chat] = {key: [] for key in questions}
    for turn in (0, 1):
        for heat in sorted({temperature(key) for key in questions}):
            asked = {}
            for key in questions:
                if temperature(key) == heat:
                    text = questions[key]["turns"][turn]
                    chats[key] += [{"role": "user", "content": text}] if turn else task.messages(text)
                    asked[key] = list(chats[key])
            outcome = answer_chats(
                policy,
                asked,
                SamplingConfig(config.max_new_tokens, temperature=heat, top_p=config.top_p, seed=config.seed),
                journal=f"{config.output_path}.turn{turn + 1}.t{heat:g}.journal.jsonl",
                retry_failed=True,
                description=f"turn {turn + 1} at temperature {heat:g}",
            )
            if outcome.failures:
                key, reason = next(iter(outcome.failures.items()))
                raise InputError(f"question {key}: {reason}; run the same command again to continue")
            for key, reply in outcome.results.items():
                chats[key].append({"role": "assistant", "content": reply["text"]})
    rows = [
        {
            "question_id": questions[key]["question_id"],
            "model_id": config.system,
            "choices": [{"index": 0, "turns": [chat[1]["content"], chat[3]["content"]]}],
        }
        for key, chat in chats.items()
    ]
    save_json(config.output_path, rows)
    print(f"{len(rows)} questions answered in two turns -> {config.output_path}")
    say_next(
        f"python evaluation/ultrafeedback/mt_bench_judge.py --questions {quoted(config.questions)} "
        f"--answers {quoted(config.output_path)} --system {quoted(config.system)} --judge openai:MODEL "
        "--output_path mt_bench.result.json"
    )


if __name__ == "__main__":
    main()
