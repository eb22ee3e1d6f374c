"""Reflection at inference time: a critic criticises an answer, the policy rewrites it, N rounds; nothing is trained.

    python nl_gradient_policy_optimization/baselines/reflect.py --task slf5k --data_path answers.json \\
        --output_path reflected.json --model runs/sft --critic runs/reward_model --rounds 1

``answers.json`` holds the policy's first answers (``evaluation/generate.py`` writes them). An answer in which the
critic finds nothing poor or missing (in code: nothing wrong or improvable) stays as it is, and so does one whose
critique or rewriting fails. The output are the task's records with the last answers, for ``evaluation`` to score, each
with the story of its rounds under ``reflection``. Killed and run again, nothing is asked twice.
"""

from dataclasses import MISSING, asdict, dataclass
from typing import Any

from text2grad.configs import TaskConfig, parse, setting
from text2grad.critics import Critic
from text2grad.critics.asking import feedback_on
from text2grad.critics.settings import PromptedCritic
from text2grad.endpoints import is_endpoint
from text2grad.endpoints.client import endpoint_of
from text2grad.endpoints.settings import Endpoint
from text2grad.errors import InputError, command
from text2grad.feedback import Feedback
from text2grad.journal import Outcome, map_records
from text2grad.models.answering import Chat, LocalPolicy, Policy, SamplingConfig, ServedPolicy
from text2grad.prompts import Prompt, asking, carried_words, load_prompt, prompt_path
from text2grad.records import Records, check_output, generation_of, load_records, save_records
from text2grad.tasks import Record, Task, get_task


@dataclass
class ReflectConfig(PromptedCritic, TaskConfig):
    """Who criticises, who writes, and how often."""

    data_path: str = setting(
        MISSING, "the task's records with the policy's first answers", "--dataset_path", "--input_file", "--responses"
    )
    output_path: str = setting(MISSING, "the same records with its last answers", "--output_file", "--output")
    model: str = setting(
        MISSING, "the policy: folder, adapter, hub id, smollm2, http://HOST/v1#MODEL, openai:MODEL", "--model_path"
    )
    critic: str = setting("programmatic", "as in training's --critic", "--annotator")
    rounds: int = setting(1, "critiques and rewritings of each answer", at_least=1)
    prompt: str = setting("", "file of the request to rewrite; by default the task's reflect.txt", "--prompt_file")
    max_new_tokens: int = setting(128, "longest answer in tokens", "--max_response_tokens", "--max_tokens", at_least=1)
    batch_size: int = setting(8, "answers that critic or policy get together", at_least=1)


def writer_of(config: ReflectConfig) -> Policy:
    """The policy that ``--model`` names."""
    if not is_endpoint(config.model):
        return LocalPolicy(config.model)
    base_url, model = endpoint_of(config.model)
    return ServedPolicy(model, base_url, Endpoint(concurrency=config.batch_size), config.model)


def reflect(
    records: Records, task: Task, critic: Critic, writer: Policy, prompt: Prompt, config: ReflectConfig
) -> Records:
    """Criticise and rewrite ``config.rounds`` times; the records with their last answers and the story of each."""
    current = dict(records)
    stories: dict[str, list[dict[str, Any]]] = {key: [] for key in records}
    for number in range(1, config.rounds + 1):
        judged = feedback_on(
            critic,
            current,
            task,
            f"{config.output_path}.round{number}.critique.journal.jsonl",
            batch_size=config.batch_size,
            description=f"round {number}: critique",
        )
        feedback = {key: task.fields.from_dict(reply) for key, reply in judged.results.items()}
        chats = {
            key: rewriting_chat(current[key], task, said, prompt)
            for key, said in feedback.items()
            if said.poor or said.missing or (task.is_code and said.good)
        }
        written = rewrite(chats, writer, prompt, config, number)
        for key, record in current.items():
            reply = written.results.get(key, {})
            text = reply.pop("text", "").strip()
            said = feedback.get(key)
            stories[key].append(
                {
                    "response": task.response(record),
                    **(task.fields.to_dict(said) if said else {"error": judged.failures.get(key, "not judged")}),
                    "rewritten": bool(text),
                    **({"error": written.failures[key]} if key in written.failures else {}),
                }
            )
            if text:
                current[key] = task.with_response(record, text)
                if made := generation_of(record):
                    current[key] = {**current[key], "generation": made | reply}
        print(
            f"round {number}: {len(judged.results)} of {len(current)} answers judged, {len(chats)} criticised, "
            f"{sum(story[-1]['rewritten'] for story in stories.values())} rewritten"
        )
    about = {"model": writer.identity, "critic": critic.name}
    return records.like(
        {
            key: {**task.training_prompts(record), "reflection": {**about, "rounds": stories[key]}}
            for key, record in current.items()
        }
    )


def rewrite(chats: dict[str, Chat], writer: Policy, prompt: Prompt, config: ReflectConfig, number: int) -> Outcome:
    """The policy's new answers, decoded greedily: the fields of ``PolicyAnswer``."""

    def work(ids: list[str], batch: list[Chat]) -> list[dict[str, Any] | Exception]:
        replies = writer(batch, [""] * len(batch), SamplingConfig(config.max_new_tokens))
        return [reply if isinstance(reply, Exception) else asdict(reply) for reply in replies]

    ordered = dict(sorted(chats.items(), key=lambda item: -sum(len(turn["content"]) for turn in item[1])))
    return map_records(
        ordered,
        work,
        journal=f"{config.output_path}.round{number}.rewriting.journal.jsonl",
        settings={"model": writer.identity, "prompt": prompt.fingerprint, "max_new_tokens": config.max_new_tokens},
        batch_size=1 if writer.workers else config.batch_size,
        workers=writer.workers,
        result_type=dict,
        description=f"round {number}: rewriting",
    ).whole()


def rewriting_chat(record: Record, task: Task, feedback: Feedback, prompt: Prompt) -> Chat:
    """The first request, the answer, and the request to correct what the critic found."""
    fields = {
        "critique": feedback.critique,
        "good": "\n".join(f"- {quote}" for quote in feedback.good) or "- (nothing)",
        "poor": "\n".join(f"- {quote}" for quote in feedback.poor) or "- (nothing)",
    }
    return [
        *task.messages(task.prompt(record)),
        {"role": "assistant", "content": task.response(record)},
        {"role": "user", "content": prompt.fill(fields)},
    ]


@command
def main() -> None:
    config = parse(ReflectConfig)
    task = asking(get_task(config.task), carried_words(config.model))
    check_output(config.output_path)
    prompt = load_prompt(
        config.prompt or prompt_path(task, "reflect"), required=("critique",), offered=("critique", "good", "poor")
    )
    records = load_records(config.data_path, task, responses=None)  # an empty answer stays as it is
    for key, record in records.items():
        if task.response_if_any(record) is None:
            raise InputError(
                f"{config.data_path}: record {key} has no answer to rewrite; evaluation/generate.py writes them"
            )
    output = reflect(records, task, config.load_critic(task), writer_of(config), prompt, config)
    save_records(config.output_path, output)
    print(f"{len(output)} answers after {config.rounds} rounds -> {config.output_path}")


if __name__ == "__main__":
    main()
