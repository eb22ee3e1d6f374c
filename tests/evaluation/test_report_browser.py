"""The report in a real browser (headless Chromium): it opens offline, and its viewer finds and draws responses."""

import shutil
import sys
from pathlib import Path

import pytest

from tests import report_files
from tests.processes import run_command
from text2grad.records import load_json

pytestmark = pytest.mark.slow

STEPS, PER_STEP = 100, 6


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    webdriver = pytest.importorskip("selenium.webdriver")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if not (chromium and driver):
        pytest.skip("no Chromium with chromedriver here")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    disabled = ("gpu", "quic", "dev-shm-usage", "background-networking", "component-update", "sync")
    for flag in ("headless=new", "no-sandbox", "no-first-run", *(f"disable-{name}" for name in disabled)):
        options.add_argument(f"--{flag}")
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    session = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield session
    session.quit()


def build(output: Path, *args: str | Path) -> Path:
    run_command(sys.executable, "evaluation/report.py", *args, "--output", output)
    return output


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    """Two runs, results of both, and a few answers that are code."""
    folder = tmp_path_factory.mktemp("browser")
    for method, skill in (("text2grad", 0.85), ("ppo_scalar", 0.6)):
        report_files.write_learning_run(folder / method, method, 1, STEPS, PER_STEP)
        report_files.write_result(folder / f"{method}.result.json", method, skill)
    report_files.write_result(folder / "base.result.json", "base", 0.08)
    runs = [folder / "text2grad", folder / "ppo_scalar", report_files.write_code_run(folder / "code")]
    return build(folder / "report.html", *runs, "--results", *sorted(folder.glob("*.result.json")))


@pytest.fixture(scope="module")
def logged(page) -> list[dict]:
    """All rollouts in the page's order, each with its run's name."""
    runs = ("text2grad", "ppo_scalar", "code")
    return [{**row, "run": run} for run in runs for row in load_json(page.parent / run / "rollouts.jsonl")]


def show(browser, page: Path) -> None:
    """Open the page and wait for the first answers."""
    browser.get(page.as_uri())
    wait_for(browser, "document.querySelector('#rollouts[data-ready]')")


def wait_for(browser, condition: str) -> None:
    """Until a JavaScript expression is truthy."""
    from selenium.webdriver.support.wait import WebDriverWait

    WebDriverWait(browser, 30, poll_frequency=0.02).until(lambda _: js(browser, f"return {condition}"))


def js(browser, script: str, *args):
    return browser.execute_script(script, *args)


def choose(browser, **fields: str | int) -> None:
    """Set filters of the list of answers and wait until it has been drawn anew."""
    before = js(browser, "return document.querySelector('#rollouts').dataset.ready")
    script = """const field = document.querySelector(`#rollouts [name="${arguments[0]}"]`);
        field.value = arguments[1]; field.dispatchEvent(new Event("input", { bubbles: true }));"""
    for name, value in fields.items():
        js(browser, script, name, value)
    wait_for(browser, f"Number(document.querySelector('#rollouts').dataset.ready) >= {int(before) + len(fields)}")


def count(browser) -> int:
    text = js(browser, "return document.querySelector('#rollouts .status').firstChild.data")
    return int(text.split(" of ")[0].replace(",", ""))


def listed(browser) -> list[dict]:
    script = """return [...document.querySelectorAll('#rollouts .rollout')].map((item) => ({
        step: item.querySelector('.response').rollout.step,
        response: item.querySelector('.response').textContent,
        critique: item.querySelector('.critique').textContent}));"""
    return js(browser, script)


def test_it_opens_without_network_or_complaint(browser, page, logged):
    show(browser, page)
    assert count(browser) == len(logged)
    assert [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
    fetched = js(browser, "return performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert [name for name in fetched if not name.startswith(("data:", "blob:"))] == []


def test_two_systems_are_side_by_side(browser, page):
    show(browser, page)
    wait_for(browser, "document.querySelector('#answers[data-ready]')")
    found = "[...document.querySelectorAll('#answers .response')]"
    shown = js(browser, f"return {found}.map((item) => item.rollout.response)")
    before, after = (load_json(page.parent / f"{name}.result.json") for name in ("base", "text2grad"))
    first = next(iter(before["records"]))
    assert shown == [side["records"][first]["response"] for side in (before, after)]


def test_filters_and_search_find_what_the_log_holds(browser, page, logged):
    show(browser, page)
    choose(browser, query="LANDLORD")
    texts = ("response", "critique", "prompt", "error", "id")
    assert count(browser) == sum(any("landlord" in (row[name] or "").lower() for name in texts) for row in logged) > 0
    choose(browser, query="")
    choose(browser, sign="failed")
    assert count(browser) == sum(bool(row["error"]) for row in logged) > 0
    assert all("No usable critique" in item["critique"] for item in listed(browser))
    choose(browser, sign="cut", **{"from": 90})
    assert count(browser) == sum(not row["finished"] and row["step"] >= 90 for row in logged) > 0
    choose(browser, sign="poor", run="0", to=95)
    span = [row for row in logged if row["run"] == "text2grad" and 90 <= row["step"] <= 95]
    assert count(browser) == sum(bool(row["poor"]) for row in span) > 0
    choose(browser, sign="any", sort="best")
    best = max(sum(row["deltas"]) / len(row["deltas"]) for row in span if row["deltas"])
    shown = js(browser, "return document.querySelector('#rollouts .response').rollout.mean")
    assert shown == pytest.approx(best, abs=6e-4)
    choose(browser, query="what do you think about this? [.*")
    assert count(browser) == 0  # what is typed is text, not a pattern
    assert "Widen the steps" in js(browser, "return document.querySelector('#rollouts').innerText")


def test_answers_are_drawn_with_their_spans_and_their_heat(browser, page, logged):
    show(browser, page)
    choose(browser, run="0", sort="early")
    for item, row in zip(listed(browser), logged, strict=False):
        assert (item["step"], item["response"].removesuffix("end")) == (row["step"], row["response"])
    script = """const at = document.querySelectorAll('#rollouts .response')[arguments[0]];
        return [...at.querySelectorAll('span')].map((s) => [s.textContent, s.className, s.style.background]);"""
    marked = next(number for number, row in enumerate(logged[:8]) if row["poor"])
    row = logged[marked]
    poor = "".join(text for text, kind, _ in js(browser, script, marked) if "poor" in kind.split())
    assert all(quote in poor for quote in row["poor"])
    assert len(poor) <= sum(map(len, row["poor"]))
    change = "mode.value = 'reward'; mode.dispatchEvent(new Event('input', { bubbles: true }))"
    js(browser, f"const mode = document.querySelector('.mode'); {change}")
    heat = js(browser, script, marked)
    below = "".join(text for text, _, background in heat if "minus" in background)
    valued = zip(row["spans"], row["rewards"], strict=True)
    told = "".join(row["response"][s:e] for (s, e), value in valued if value < 0)
    assert below == told
    assert all("poor" not in kind.split() for _, kind, _ in heat)


def test_a_token_tells_its_numbers(browser, page, logged):
    show(browser, page)
    choose(browser, run="0", sort="early")
    js(browser, "document.querySelector('#rollouts .response .t').click()")
    tip = js(browser, "return document.getElementById('tip').innerText")
    row = logged[0]
    assert f"token 1 of {len(row['tokens'])}" in tip
    assert f"{row['advantages'][0]:+.3f}".replace("-", "−")[:4] in tip
    moved = row["new_logprobs"][0] - row["old_logprobs"][0]
    assert f"{moved:+.3f}".replace("-", "−")[:4] in tip


def test_code_keeps_its_emoji_and_its_labels(browser, page):
    """A token that is half an emoji shares its cell, and offsets count characters, not UTF-16 units."""
    show(browser, page)
    choose(browser, run="2")
    script = "return [...document.querySelector('#rollouts .response').querySelectorAll('span')]"
    pieces = js(browser, f"{script}.map((s) => [s.textContent, s.className]);")
    kinds = {kind: "".join(t for t, k in pieces if kind in k.split()) for kind in ("poor", "neutral", "good")}
    assert kinds == {"poor": "return n % 2 == 1", "neutral": "print(is_even(2))", "good": ""}
    assert "improvable" in js(browser, "return document.querySelector('#rollouts .legend').innerText")
    assert "".join(text for text, _ in pieces) == report_files.CODE_ANSWER
    tokens = js(browser, "return document.querySelector('#rollouts .t').dataset.tokens")
    assert tokens == "0 1"


def test_hostile_text_runs_nothing(browser, tmp_path):
    run, result = report_files.write_hostile(tmp_path)
    page = build(tmp_path / "report.html", run, "--results", result)
    show(browser, page)
    choose(browser, query="window.pwned")
    assert count(browser) == 2
    js(browser, "document.querySelectorAll('details').forEach((item) => { item.open = true; })")
    assert js(browser, "return window.pwned ?? null") is None
    assert js(browser, "return document.querySelectorAll('main img[onerror], main script').length") == 0
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
