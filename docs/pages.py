"""The site's pages (mkdocs calls this): those of the repository where they lie, and pages made of code.

A program or a notebook that a page links to becomes a page too. The references are made of what they describe: one page
for each public module (``text2grad.__all__``), one for the settings of each stage.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import escape
from importlib import import_module
from inspect import getdoc
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

import text2grad
from nl_gradient_policy_optimization.algorithms import ALGORITHMS
from nl_gradient_policy_optimization.config import PolicyConfig
from text2grad.configs import Described, described

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (
    "docs", "rm_data_anno", "nl_reward_model", "nl_gradient_policy_optimization", "evaluation", "recipes", "quickstart",
    "benchmarks",
)  # fmt: skip
LINK = re.compile(r"(?<=\]\()(?!\w+:)([^)#\s]+)")


SETTINGS = {
    "annotation": ["rm_data_anno.annotate.AnnotateConfig"],
    "reward model": ["nl_reward_model.config.RewardModelConfig", "nl_reward_model.infer.InferConfig"],
    "policy": [
        *(f"{kind.__module__}.{kind.__name__}" for kind in reversed(PolicyConfig.__bases__)),
        *(f"nl_gradient_policy_optimization.algorithms.{place}" for place in ALGORITHMS.values()),
    ],
    "evaluation": [
        "evaluation.generate.GenerateConfig",
        "text2grad.models.answering.AnsweringConfig",
        "text2grad.models.answering.SamplingConfig",
        "evaluation.measuring.MeasureConfig",
        "evaluation.judge.WinRateConfig",
        "text2grad.endpoints.judging.JudgeConfig",
    ],
    "served critic": ["text2grad.integrations.serve.ServeConfig"],
}
"""The dataclasses of each page."""


def on_config(config: Any) -> Any:
    """The made pages' places in the navigation."""
    (reference,) = (section["Reference"] for section in config.nav if "Reference" in section)
    reference.append({"Settings": [{title.capitalize(): _settings_name(title)} for title in SETTINGS]})
    reference.append({"Python": [{f"text2grad.{name}": f"reference/{name}.md"} for name in text2grad.__all__]})
    return config


def on_files(files: Files, config: Any) -> Files:
    pages = [*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))]
    linked = {target for page in pages for target in _targets(page) if target.is_file() and target.suffix != ".md"}
    made = {
        **{_name(page): {"abs_src_path": str(page)} for page in (*pages, *linked, ROOT / "docs" / "site.css")},
        **{f"{_name(path)}.md": {"content": MADE[path.suffix](path)} for path in linked if path.suffix in MADE},
        **{_settings_name(title): {"content": settings_page(title, kinds)} for title, kinds in SETTINGS.items()},
        **{f"reference/{name}.md": {"content": reference_page(name)} for name in text2grad.__all__},
    }
    kept = [file for file in files if file.src_dir != config.docs_dir]
    return Files([*kept, *(File.generated(config, name, **source) for name, source in made.items())])


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links to programs and notebooks lead to their pages."""
    return LINK.sub(lambda match: match[0] + ".md" * (Path(match[0]).suffix in MADE), markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Without the roles of Sphinx, which docstrings name objects with."""
    return re.sub(r":(?:func|class|meth|mod|attr|data):(?=<code>)", "", html)


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _settings_name(title: str) -> str:
    return f"settings/{title.replace(' ', '_')}.md"


def _targets(page: Path) -> Iterator[Path]:
    return ((page.parent / link).resolve() for link in LINK.findall(page.read_text(encoding="utf-8")))


def program_page(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    return f"---\nsearch:\n  exclude: true\n---\n# {_name(path)}\n\n````{path.suffix[1:]}\n{text}\n````\n"


def notebook_page(path: Path) -> str:
    """A notebook's cells, each program with what it printed and showed."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(f"````python\n{source}\n````" if cell["cell_type"] == "code" else source)
        for output in cell.get("outputs", []):
            shown = output.get("data", {"text/plain": output.get("text", "")})
            html, text = "".join(shown.get("text/html", "")), "".join(shown.get("text/plain", ""))
            parts.append(html or f'<pre class="output"><code>{escape(text)}</code></pre>')
    return "\n\n".join(parts) + "\n"


MADE = {".py": program_page, ".yaml": program_page, ".ipynb": notebook_page}


def reference_page(name: str) -> str:
    """A public module; of these two packages, the modules in them too."""
    inside = {"losses": ["ppo", "kl", "teacher"], "integrations": ["core", "trl"]}.get(name, [])
    modules = [f"text2grad.{name}", *(f"text2grad.{name}.{module}" for module in inside)]
    shown = [f"## {module.removeprefix('text2grad.')}\n\n::: {module}" for module in modules[1:]]
    return "\n\n".join([f"# {modules[0]}\n\n::: {modules[0]}", *shown]) + "\n"


def settings_page(title: str, places: list[str]) -> str:
    """The settings of a stage's dataclasses as tables: the flag, its other spellings, default, what it does."""
    parts = [f"# Settings: {title}", "Each is a flag (`--name VALUE`) and a line of a YAML file (`--config FILE`)."]
    for place in places:
        module, _, name = place.rpartition(".")
        kind = getattr(import_module(module), name)
        title, _, about = (getdoc(kind) or name).partition("\n")
        title = f"`--algorithm {kind.name}`: {title}" if hasattr(kind, "uses_values") else title
        parts += [f"## {title.rstrip('.')}", about]
        rows = [_row(each) for each in described(kind) if not each.library]
        parts.append("\n".join(["| setting | default | |", "| --- | --- | --- |", *rows]) if rows else "")
    return "\n\n".join(parts) + "\n"


def _row(setting: Described) -> str:
    names = "<br>".join(f"`{name}`" for name in (f"--{setting.name}", *setting.aliases))
    choices = f". One of {setting.value[1:-1].replace(',', ', ')}" if setting.value.startswith("{") else ""
    cells = (names, f"`{setting.default}`" if setting.default else "", escape(setting.text) + choices)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
