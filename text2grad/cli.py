"""The command ``text2grad``: each stage's program by name, with the flags of its script.

The stages are higher floors than this package, so a program is imported by name when it is called for.
"""

import sys
from dataclasses import dataclass
from importlib import import_module

from text2grad import __version__, configs
from text2grad.tasks.base import PROJECT
from text2grad.tasks.commands import flag_values


@dataclass(frozen=True)
class Program:
    """A module with a ``main``, for any task, and the module of a task that has its own."""

    about: str
    module: str
    own: str = ""

    def chosen(self, args: list[str]) -> tuple[str, str, list[str]]:
        """The task that the arguments name, the module for it, and the arguments that it takes."""
        tasks, others = flag_values(args, "--task")
        task = tasks[-1] if tasks else ""
        own = self.own.format(task)
        there = own and task.isidentifier() and PROJECT.joinpath(*own.split(".")).with_suffix(".py").is_file()
        return (task, own, others) if there else (task, self.module, args)


PROGRAMS = {
    "annotate": Program(
        "critiques and quoted spans for a file of responses",
        "rm_data_anno.annotate",
        "rm_data_anno.{}.dual_feedback_annotation_RM",
    ),
    "reward-model": Program(
        "train a reward model on annotated responses", "nl_reward_model.train_rm", "nl_reward_model.{}.train_rm"
    ),
    "train": Program(
        "optimise a policy with a critic's feedback, token by token",
        "nl_gradient_policy_optimization.optimize",
        "nl_gradient_policy_optimization.{}.train",
    ),
    "generate": Program("a policy's responses to a file of prompts", "evaluation.generate"),
    "evaluate": Program(
        "measure responses: one result file with intervals", "evaluation.evaluate", "evaluation.{}.evaluate"
    ),
    "report": Program("one page of training runs and results", "evaluation.report"),
    "serve": Program("hold a critic behind HTTP", "text2grad.integrations.serve"),
    "quickstart": Program("all of it on a small model, in minutes", "quickstart.run"),
}


def help_text() -> str:
    commands = "\n".join(f"  {name:<13} {program.about}" for name, program in PROGRAMS.items())
    return (
        "usage: text2grad COMMAND [--config FILE] [--SETTING VALUE ...]\n\n"
        "Train language models from natural-language feedback: critiques become token-level rewards.\n\n"
        f"{commands}\n\n"
        "text2grad COMMAND --help      its settings; with --task slf5k also that task's own\n"
        "text2grad --version\n\n"
        "Example: text2grad annotate --task slf5k --critic openai:gpt-4o --data_path summaries.json"
    )


def main() -> None:
    if not sys.argv[1:] or sys.argv[1] in ("-h", "--help"):
        print(help_text())
    elif sys.argv[1] == "--version":
        print(f"text2grad {__version__}")
    elif sys.argv[1] in PROGRAMS:
        _run(sys.argv[1], sys.argv[2:])
    else:
        print(f"error: there is no command {sys.argv[1]!r}; choose one of {', '.join(PROGRAMS)}", file=sys.stderr)
        raise SystemExit(2)


def _run(name: str, args: list[str]) -> None:
    task, module, args = PROGRAMS[name].chosen(args)
    try:
        program = import_module(module)
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package == module.partition(".")[0]:
            remedy = "run it in a checkout of the repository, which `bash env.sh` sets up"
        else:
            remedy = "run `pip install 'text2grad[train,serve]'`"
        print(f"error: text2grad {name} needs {error.name}, which is not installed; {remedy}", file=sys.stderr)
        raise SystemExit(2) from None
    sys.modules["__main__"].__doc__ = program.__doc__  # --help begins with it
    configs.program = f"text2grad {name}"
    sys.argv = [str(program.__file__), *args]  # what the script has written, the command may replace
    if program.main.__module__ == module:
        program.main()
    else:  # a task's script lends the main of all tasks, and tells it the task
        program.main(task)
