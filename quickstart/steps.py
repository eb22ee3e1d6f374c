"""The steps of the quickstart's two tours, by the functions of the four stages.

Each step writes files below the run's folder, and repeats nothing that an earlier call finished.
"""

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accelerate.state import AcceleratorState, GradientState

from evaluation import report
from evaluation.generate import GenerateConfig, generate
from evaluation.kodcode.evaluate import ProgramEvaluationConfig, evaluate_programs
from evaluation.slf5k.evaluate import SummaryEvaluationConfig, evaluate_summaries
from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.optimize import optimize
from nl_reward_model.config import RewardModelConfig
from nl_reward_model.infer import InferConfig, infer
from nl_reward_model.measures.metrics import MetricsConfig, measure_feedback
from nl_reward_model.train_rm import train
from quickstart.tiny_model import make_tiny_model
from rm_data_anno.annotate import AnnotateConfig, annotate
from text2grad.configs import parse
from text2grad.models.answering import AnsweringConfig, Policy, SamplingConfig, load_policy
from text2grad.records import load_records
from text2grad.tasks import get_task

DATA = Path("quickstart/data")
RULES = "text2grad.critics.programs.slf5k.critic:WorkedSummaryCritic"
SYSTEMS = ("base", "text2grad")


class Tour:
    """What both tours do: answer held-out prompts before and after a training, and report.

    Args:
        run: the tour's folder.
        smoke: take a tiny random model, and little of everything.
        critic: who gives feedback to the policy.
    """

    task: str
    prefix = ""  # of the settings' files

    def __init__(self, run: Path, smoke: bool, seed: int, critic: str):
        self.run_dir, self.smoke, self.seed, self.critic = run, smoke, seed, critic
        self.settings = Path("quickstart/smoke" if smoke else "quickstart")
        self.model = str(run / "tiny_model") if smoke else "smollm2"

    def run(self) -> None:
        self.run_dir.mkdir(parents=True, exist_ok=True)
        if self.smoke:
            say("A tiny random model: the figures of this run mean nothing")
            make_tiny_model(self.model)
        self.steps()
        note = "; its figures mean nothing: the model is random" if self.smoke else ""
        print(f"\nopen {self.run_dir / 'report.html'} in a browser{note}")

    def steps(self) -> None:
        raise NotImplementedError

    def measure(self, system: str) -> None:
        """Write the held-out result of a system."""
        raise NotImplementedError

    def train_policy(self, prompts: Path, critic: str, **audit: Any) -> None:
        config = self._settings(
            PolicyConfig,
            file=f"{self.prefix}policy.yaml",
            model=self.model,
            seed=self.seed,
            data_path=prompts,
            critic=critic,
            output_dir=self._file("policy"),
            **audit,
        )
        optimize(self.task, config)
        clear()

    def evaluate(self, prompts: Path, systems: Sequence[str] = SYSTEMS) -> None:
        for system in systems:
            model = self.model if system == "base" else self._file("policy/policy")
            self._answers(prompts, f"held_out.{system}.json", settings="held_out.yaml", model=model)
            self.measure(system)
            clear()

    def report(self, *args: str) -> None:
        results = [self._file(f"held_out.{system}.result.json") for system in SYSTEMS]
        output = ["--output_path", self._file("report.html")]
        report.main([self._file("policy"), "--baseline", "base", *output, *args, "--results", *results])

    def _answers(
        self, prompts: Path, name: str, policy: Policy | None = None, settings: str = "answers.yaml", **given: Any
    ) -> Policy:
        """Have a policy, by default the model that is given, answer prompts; returns it."""
        kinds = (GenerateConfig, AnsweringConfig, SamplingConfig)
        what, who, how = self._settings(
            *kinds, file=self.prefix + settings, data_path=prompts, output_path=self._file(name), **given
        )
        policy = policy or load_policy(who)
        if not generate(policy, load_records(what.data_path, get_task(self.task), responses=False), what, how):
            raise SystemExit(1)
        return policy

    def _settings(self, *kinds: type, file: str, **given: Any) -> Any:
        """Settings of one of the quickstart's files, and others that are given."""
        flags = [text for name, value in given.items() for text in (f"--{name}", str(value))]
        return parse(*kinds, args=["--config", str(self.settings / file), *flags])

    def _file(self, name: str) -> str:
        return str(self.run_dir / name)


class PostsTour(Tour):
    """Summaries of posts: rules annotate, a reward model learns from them, the policy from the reward model."""

    task = "slf5k"
    train, held_out = DATA / "posts_train.json", DATA / "posts_validation.json"

    def steps(self) -> None:
        say("1/6  The base model answers the posts")
        self.answer()
        say("2/6  Each answer gets a critique, and quotes of what is good and poor in it")
        self.annotate()
        say("3/6  A reward model learns to write such feedback, and writes it on posts that nobody trained on")
        self.train_reward_model()
        say("4/6  The policy learns from the feedback, token by token")
        # The rules audit a quarter of the answers, for the log only, unless they are the critic themselves.
        audit = {} if self.critic == "programmatic" else {"audit_critic": "programmatic", "audit_share": 0.25}
        critic = self._file("reward_model") if self.critic == "reward_model" else self.critic
        constrained = "quotes" if Path(critic).is_dir() else "none"  # a small model misquotes
        self.train_policy(self.train, critic, critic_constrained=constrained, **audit)
        say("5/6  Before and after, on posts that nobody trained on")
        self.evaluate(self.held_out)
        say("6/6  The report")
        annotation, metrics = self._file("annotated.json.report.json"), self._file("reward_model.metrics.json")
        self.report("--annotation", annotation, "--reward_model", metrics)

    def measure(self, system: str) -> None:
        evaluate_summaries(
            SummaryEvaluationConfig(
                data_path=self._file(f"held_out.{system}.json"),
                system=system,
                critic="programmatic",
                output_path=self._file(f"held_out.{system}.result.json"),
            )
        )

    def answer(self) -> None:
        limit = 8 if self.smoke else 32
        policy = self._answers(self.train, "answers.json", limit=limit, model=self.model, seed=self.seed)
        self._answers(self.held_out, "unseen.json", policy, num_samples=1, model=self.model, seed=self.seed)

    def annotate(self) -> None:
        for answers, annotated in (("answers.json", "annotated.json"), ("unseen.json", "unseen.annotated.json")):
            source, target = self._file(answers), self._file(annotated)
            annotate(self.task, AnnotateConfig(critic=RULES, data_path=source, output_path=target))

    def train_reward_model(self) -> None:
        config = self._settings(
            RewardModelConfig,
            file="reward_model.yaml",
            model=self.model if self.smoke else "quickstart/reward_model",  # made by quickstart/reward_model.sh
            seed=self.seed,
            data_path=self._file("annotated.json"),
            output_dir=self._file("reward_model"),
        )
        train(self.task, config)
        clear()
        judgements = self._file("judgements.json")
        infer(
            self.task,
            InferConfig(
                model=self._file("reward_model"),
                constrained="quotes",
                data_path=self._file("unseen.annotated.json"),
                output_path=judgements,
            ),
        )
        measure_feedback(
            self.task, MetricsConfig(data_path=judgements, output_path=self._file("reward_model.metrics.json"))
        )
        clear()


class CodeTour(Tour):
    """Small Python functions: the unit tests are the critic, and blame the lines that led to a failure."""

    task = "kodcode"
    prefix = "code_"
    train, held_out = DATA / "code_train.json", DATA / "code_test.json"

    def steps(self) -> None:
        say("1/4  The base model writes programs that nobody trains on, and their unit tests run")
        self.evaluate(self.held_out, ["base"])
        say("2/4  The policy learns from the tests: how many pass; the lines that failed are shown")
        self.train_policy(self.train, self.critic)
        say("3/4  The same programs again, by the policy")
        self.evaluate(self.held_out, ["text2grad"])
        say("4/4  The report")
        self.report()

    def measure(self, system: str) -> None:
        answers, result = self._file(f"held_out.{system}.json"), self._file(f"held_out.{system}.result.json")
        evaluate_programs(ProgramEvaluationConfig(data_path=answers, system=system, output_path=result))


def say(text: str) -> None:
    print(f"\n\033[1m{text}\033[0m", flush=True)


def clear() -> None:
    """Free a step's models, and what accelerate keeps for the whole process.

    The reward model's number type would otherwise be the policy's, too.
    """
    gc.collect()
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
