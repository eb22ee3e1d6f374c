"""What a figure is called, how it is printed, and which way is better (``metrics.yaml`` beside this file)."""

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from text2grad.feedback import Feedback


@dataclass(frozen=True)
class Wording:
    """A metric of ``metrics.yaml``. ``better``: +1 where higher is better, −1 where lower is, 0 where neither is."""

    label: str
    says: str = ""
    better: int = 0
    style: str = "number"
    main: bool = False


METHODS = {
    "base": "Base model",
    "text2grad": "Text2Grad",
    "ppo_scalar": "PPO (scalar reward)",
    "ppo_last_sum": "PPO (sum of δ at the end)",
    "ppo_last_mean": "PPO (mean of δ at the end)",
    "ppo_last_verdict": "PPO (verdict at the end)",
    "verdict": "Text2Grad with a verdict",
    "prm_ppo": "PRM-PPO",
    "capo": "CAPO",
    "sdpo": "SDPO",
    "grpo": "GRPO",
    "dr_grpo": "Dr. GRPO",
    "rtt": "RTT",
    "papo": "PAPO",
    "pure": "PURE",
    "prime": "PRIME",
    "dpo": "DPO",
    "sft": "SFT",
}


@cache
def known_metrics() -> dict[str, Wording]:
    """The metrics of ``metrics.yaml``, in its order."""
    entries = yaml.safe_load((Path(__file__).parent / "metrics.yaml").read_text(encoding="utf-8"))
    signs = {"higher": 1, "lower": -1, None: 0}
    return {name: Wording(**{**entry, "better": signs[entry.get("better")]}) for name, entry in entries.items()}


def wording(name: str) -> Wording:
    """The wording of a metric; for one that is not known, its own name."""
    if name in known_metrics():
        return known_metrics()[name]
    if name.startswith("kl/"):
        says = "KL divergence from the reference model, in nats per response."
        return Wording(f"KL to the reference ({name[3:]})", says, main=True)
    if name.startswith(("pass@", "plus_pass@")):  # EvalPlus' additional tests
        label = f"{name[5:]}, additional tests too" if name.startswith("plus_") else name
        says = f"Probability that one of {name.rpartition('@')[2]} samples solves a problem."
        return Wording(label, says, +1, "share")
    if name.startswith("seconds/"):
        return Wording(name[8:].replace("_", " ").capitalize(), "", -1, "seconds")
    return Wording(name.replace("_", " ").replace("/", " / "))


def method_name(method: str) -> str:
    return METHODS.get(method, method)


def system_name(system: str) -> str:
    """A system's name inside a sentence."""
    return "the base model" if system == "base" else method_name(system)


def show(value: float | str | None, style: str = "number") -> str:
    """A figure for people: a proper minus, and no more digits than can be read.

    Args:
        style: number, signed, share, count, seconds; plain (any value of a file).
    """
    if isinstance(value, str | bool):
        return str(value)
    if value is None or not math.isfinite(value):
        return "–"
    size = abs(value)
    if style == "share":
        text = f"{100 * value:.1f} %"
    elif style == "plain":
        text = f"{value:,.0f}" if value == int(value) and size < 1e12 else f"{value:.3g}"
    elif style == "count":
        text = f"{value:,.0f}" if size >= 1000 or isinstance(value, int) else f"{value:.1f}"
    elif style == "seconds":
        text = f"{value:,.0f} s" if size >= 100 else f"{value:.1f} s" if size >= 10 else f"{value:.2f} s"
    elif size and (size < 0.001 or size >= 1e6) and style != "signed":
        mantissa, exponent = f"{value:.1e}".split("e")
        text = f"{mantissa}e{int(exponent)}"
    elif size >= 100:
        text = f"{value:,.0f}"
    else:
        text = f"{value:.1f}" if size >= 10 else f"{value:.2f}" if style == "signed" else f"{value:.3f}"
    if not _is_zero(text) and value > 0 and style == "signed":
        text = f"+{text}"
    return text.lstrip("-") if _is_zero(text) else text.replace("-", "−")


def told(feedback: Feedback | None) -> str:
    """The critique, and after it what no quote can show: what is missing, and the critic's verdict on the whole."""
    if feedback is None:
        return ""
    parts = [feedback.critique] if feedback.critique else []
    if feedback.missing:
        parts.append(f"Missing: {', '.join(feedback.missing)}.")
    if feedback.score is not None:
        parts.append(f"Verdict {show(feedback.score, 'signed')}.")
    return " ".join(parts)


def show_change(value: float | None, style: str = "number") -> str:
    """A difference, with its sign; differences of shares are in percentage points."""
    text = show(value, style)
    if style == "share":
        text = text.replace(" %", " pp")
    return f"+{text}" if text[0].isdigit() and not _is_zero(text) else text


def show_interval(low: float | None, high: float | None, style: str = "number", change: bool = False) -> str:
    """``low to high``; the empty text where there is none."""
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return ""
    write = show_change if change else show
    first, second = write(low, style), write(high, style)
    unit = second[second.rindex(" ") :] if " " in second else ""
    return f"{first.removesuffix(unit)} to {second}"


def show_p(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def _is_zero(text: str) -> bool:
    return not any(char in "123456789" for char in text.split("e")[0])
