"""The report in a real browser (headless Chromium): quick, quiet, offline, and usable on a desk and on a phone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests import synthetic_runs
from tests.report_files import hand_made, write_hostile, write_run

pytestmark = pytest.mark.slow

DESK, TABLET, PHONE = (1440, 900), (768, 1024), (375, 812)
ROLLOUTS = int(os.environ.get("REPORT_ROLLOUTS", "5000"))
"""Of the page, in two runs. 50 000 is what a long run logs; that page takes minutes to make."""
PER_STEP = 25
STEPS = ROLLOUTS // (2 * PER_STEP)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    webdriver = pytest.importorskip("selenium.webdriver")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if not (chromium and driver):
        pytest.skip("no Chromium with chromedriver here")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        f"--user-data-dir={tmp_path_factory.mktemp('profile')}",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    session = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield session
    session.quit()


def build(output: Path, *args: str | Path) -> Path:
    command = [sys.executable, "evaluation/report.py", *map(str, args), "--output", str(output)]
    done = subprocess.run(command, cwd=synthetic_runs.ROOT, text=True, capture_output=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return output


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    """Two runs, results of both, and a few answers that are code."""
    folder = tmp_path_factory.mktemp("browser")
    for method, skill in (("text2grad", 0.85), ("ppo_scalar", 0.6)):
        synthetic_runs.write_run(folder / method, method, 1, STEPS, PER_STEP)
        synthetic_runs.write_result(folder / f"{method}.result.json", method, skill)
    synthetic_runs.write_result(folder / "base.result.json", "base", 0.08)
    synthetic_runs.write_judgement(folder / "judge.result.json", "text2grad", "base", 0.5)
    runs = [folder / "text2grad", folder / "ppo_scalar", synthetic_runs.write_code_run(folder / "code")]
    return build(folder / "report.html", *runs, "--results", *sorted(folder.glob("*.result.json")))


@pytest.fixture(scope="module")
def logged(page) -> list[dict]:
    """All rollouts in the page's order, each with its run's name."""
    rows = []
    for run in ("text2grad", "ppo_scalar", "code"):
        lines = (page.parent / run / "rollouts.jsonl").read_text().splitlines()
        rows += [{**json.loads(line), "run": run} for line in lines]
    return rows


def show(browser, page: Path, size=DESK, dark: bool = False) -> float:
    """Open the page; returns the milliseconds until the first answers could be read."""
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get(page.as_uri())
    return wait_for(browser, "document.querySelector('#rollouts[data-ready]') && performance.now()")


def wait_for(browser, condition: str):
    """The first truthy value of a JavaScript expression."""
    script = f"""
        const done = arguments[0];
        const look = () => {{ const value = {condition}; value ? done(value) : requestAnimationFrame(look); }};
        look();
    """
    browser.set_script_timeout(30)
    return browser.execute_async_script(script)


def js(browser, script: str, *args):
    return browser.execute_script(script, *args)


def choose(browser, **fields: str | int) -> None:
    """Set filters of the list of answers and wait until it has been drawn anew."""
    before = js(browser, "return document.querySelector('#rollouts').dataset.ready")
    for name, value in fields.items():
        js(
            browser,
            """const field = document.querySelector(`#rollouts [name="${arguments[0]}"]`);
               field.value = arguments[1]; field.dispatchEvent(new Event("input", { bubbles: true }));""",
            name,
            value,
        )
    wait_for(browser, f"Number(document.querySelector('#rollouts').dataset.ready) >= {int(before) + len(fields)}")


def search(browser, words: str) -> float:
    """Milliseconds from the last key to the list of hits."""
    return browser.execute_async_script(
        """const done = arguments[1], root = document.querySelector("#rollouts"), turn = root.dataset.ready;
           const field = root.querySelector('[name="query"]'), began = performance.now();
           new MutationObserver(() => root.dataset.ready !== turn && done(performance.now() - began))
               .observe(root, { attributes: true, attributeFilter: ["data-ready"] });
           field.value = arguments[0]; field.dispatchEvent(new Event("input", { bubbles: true }));""",
        words,
    )


def count(browser) -> int:
    text = js(browser, "return document.querySelector('#rollouts .status').firstChild.data")
    return int(text.split(" of ")[0].replace(",", ""))


def listed(browser) -> list[dict]:
    script = """return [...document.querySelectorAll('#rollouts .rollout')].map((item) => ({
        step: item.querySelector('.response').rollout.step,
        response: item.querySelector('.response').textContent,
        critique: item.querySelector('.critique').textContent}));"""
    return js(browser, script)


def test_it_opens_and_searches_quickly_and_quietly(browser, page, logged):
    assert len(logged) >= ROLLOUTS
    times, at_once = [], []
    for word in ("landlord", "LandLord", "no such words anywhere"):
        times.append(show(browser, page))
        at_once.append(search(browser, word))  # before the page had time to unpack the texts
    assert min(times) < 3000, times
    assert min(at_once) < 300, at_once
    wait_for(browser, "document.querySelector('#rollouts[data-searchable]')")
    sought = [search(browser, word) for word in ("landlord", "the", "sister and", "no such words anywhere")]
    told = {"megabytes": page.stat().st_size / 1e6, "opened": times, "searched_at_once": at_once, "searched": sought}
    print(f"{len(logged):,} responses:", json.dumps(told))
    assert min(sought) < 300, sought
    problems = [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
    assert problems == []
    fetched = js(browser, "return performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert [name for name in fetched if not name.startswith(("data:", "blob:"))] == []


@pytest.mark.parametrize("size", [DESK, TABLET, PHONE], ids=["desk", "tablet", "phone"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_nothing_sticks_out_and_text_can_be_read(browser, page, size, dark):
    show(browser, page, size, dark)
    assert js(browser, "return document.documentElement.scrollWidth") <= size[0]
    contrast = """
        const channel = (c) => { c /= 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
        const light = (rgb) => { const [r, g, b] = rgb.match(/[\\d.]+/g).map(Number);
            return 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b); };
        const paper = light(getComputedStyle(document.body).backgroundColor);
        const ratio = (text) => { const ink = light(text);
            return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05); };
        return ['h1', '.lead', '.note', 'td', 'td small', '.tick', '.end', '.critique', '.verdict']
            .map((name) => [name, document.querySelector(name)])
            .map(([name, item]) => [name, item instanceof SVGElement ? 'fill' : 'color', getComputedStyle(item)])
            .map(([name, property, style]) => [name, ratio(style[property])]);
    """
    for name, ratio in js(browser, contrast):
        assert ratio >= 4.5, (name, ratio)


@pytest.mark.parametrize("size", [DESK, TABLET, PHONE], ids=["desk", "tablet", "phone"])
def test_the_example_is_on_the_first_screen(browser, page, size):
    """Without JavaScript's help: both responses with their marks, and on a desk the critiques to their right."""
    show(browser, page, size)
    place = "(s) => [...document.querySelectorAll(s)].map((item) => item.getBoundingClientRect())"
    responses, critiques = (js(browser, f"return ({place})('#example {name}')") for name in (".sample", ".critique"))
    assert len(responses) == len(critiques) == 2
    assert responses[0]["bottom"] < size[1]
    if size != PHONE:
        assert critiques[1]["bottom"] < size[1]
        assert all(beside["left"] > at["right"] for at, beside in zip(responses, critiques, strict=True))
    told = js(browser, "return [...document.querySelectorAll('#example mark.poor')].map((mark) => mark.textContent)")
    assert told and all(text.startswith("[poor: ") for text in told[:-1])


def test_long_tables_are_folded_below_one_line_per_group(browser, page):
    show(browser, page)
    rows = js(browser, "return document.querySelectorAll('#results > .scroll > table tbody tr').length")
    assert 2 <= rows <= 5
    script = "return [...document.querySelectorAll('details')].filter((fold) => fold.open).length"
    assert js(browser, script) == 0


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_a_screen_reader_finds_names_roles_and_order(browser, page, size):
    """By hand, so that it needs no other package: what axe-core checks too, where it is installed."""
    show(browser, page, size)
    js(browser, "document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
    unnamed = """const shown = (item) => item.getClientRects().length;
        const name = (item) => item.getAttribute("aria-label") || item.closest("label")?.textContent.trim()
            || item.textContent.trim() || item.querySelector("title")?.textContent;
        return [...document.querySelectorAll("a, button, input, select, summary, [tabindex='0'], svg[role=img]")]
            .filter((item) => shown(item) && !name(item)).map((item) => item.outerHTML.slice(0, 120));"""
    assert js(browser, unnamed) == []
    assert js(browser, "return [document.documentElement.lang, document.querySelectorAll('main, nav').length]") == [
        "en",
        2,
    ]
    levels = js(browser, "return [...document.querySelectorAll('h1, h2, h3')].map((item) => Number(item.tagName[1]))")
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert (
        js(browser, "return document.querySelectorAll('thead th:not([scope=col]), tbody th:not([scope])').length") == 0
    )


def test_the_tab_key_goes_through_the_page_in_its_order_and_shows_where_it_is(browser, page):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    show(browser, page)
    js(browser, "window.visited = []; document.addEventListener('focusin', (event) => visited.push(event.target));")
    ActionChains(browser).send_keys(Keys.TAB * 40).perform()
    forwards = """return visited.slice(1).every((item, at) =>
        visited[at].compareDocumentPosition(item) & Node.DOCUMENT_POSITION_FOLLOWING)"""
    assert js(browser, "return visited.length") >= 20 and js(browser, forwards)
    outline = "return getComputedStyle(document.activeElement).outlineStyle"
    assert js(browser, outline) != "none"


@pytest.mark.skipif("AXE_CORE" not in os.environ, reason="AXE_CORE names no axe.min.js (npm pack axe-core)")
@pytest.mark.parametrize("size", [DESK, TABLET, PHONE], ids=["desk", "tablet", "phone"])
def test_axe_core_finds_no_violation(browser, page, size):
    show(browser, page, size, dark=size == TABLET)
    source = Path(os.environ["AXE_CORE"]).read_text(encoding="utf-8")
    browser.execute_cdp_cmd("Runtime.evaluate", {"expression": source})  # which the page's own policy does not concern
    browser.set_script_timeout(120)
    found = browser.execute_async_script(
        """const done = arguments[0];
           document.querySelectorAll("details").forEach((fold) => { fold.open = true; });
           axe.run().then(({ violations, passes }) => done([passes.length, violations.map(({ id, nodes }) =>
               [id, nodes.slice(0, 3).map((node) => node.html.slice(0, 120))])]));"""
    )
    assert found[0] > 15 and found[1] == []


def test_a_watched_page_loads_itself_again_unless_it_is_paused(browser, tmp_path):
    import argparse

    from evaluation.report import build as build_page

    run = write_run(tmp_path / "run", [hand_made(step) for step in (1, 2)])
    asked = argparse.Namespace(runs=[str(run)], results=[], annotation=[], reward_model=[], baseline=None)
    asked.max_rollouts, asked.figures = 100, None
    build_page(asked, tmp_path / "report.html", refresh=2.0)
    show(browser, tmp_path / "report.html")
    assert "at step 2" in js(browser, "return document.getElementById('live').innerText")
    js(browser, "document.querySelector('main details').open = true; window.first = true;")
    wait_for(browser, "!window.first && document.querySelector('#rollouts[data-ready]')")
    assert js(browser, "return document.querySelector('main details').open")
    js(browser, "window.first = true; document.querySelector('#live button').click()")
    browser.execute_async_script("setTimeout(arguments[0], 3500)")
    assert js(browser, "return window.first && document.querySelector('#live').innerText.includes('paused')")


def test_filters_and_search_find_what_the_log_holds(browser, page, logged):
    show(browser, page)
    assert count(browser) == len(logged)
    choose(browser, query="LANDLORD")
    texts = ("response", "critique", "prompt", "error", "id")
    assert count(browser) == sum(any("landlord" in (row[name] or "").lower() for name in texts) for row in logged) > 0
    choose(browser, query="")
    choose(browser, task="kodcode")
    assert count(browser) == sum(row["run"] == "code" for row in logged)
    choose(browser, task="slf5k", sign="failed")
    assert count(browser) == sum(bool(row["error"]) for row in logged) > 0
    assert all("No usable critique" in item["critique"] for item in listed(browser))
    choose(browser, sign="cut", **{"from": 90})
    slf5k = [row for row in logged if row["run"] != "code"]
    assert count(browser) == sum(not row["finished"] and row["step"] >= 90 for row in slf5k) > 0
    choose(browser, sign="poor", run="label:Text2Grad", to=95)
    span = [row for row in slf5k if row["run"] == "text2grad" and 90 <= row["step"] <= 95]
    assert count(browser) == sum(bool(row["poor"]) for row in span) > 0
    choose(browser, sign="any", sort="best")
    best = max(sum(row["deltas"]) / len(row["deltas"]) for row in span if row["deltas"])
    shown = js(browser, "return document.querySelector('#rollouts .response').rollout.mean")
    assert shown == pytest.approx(best, abs=6e-4)
    choose(browser, query="what do you think about this? [.*")
    assert count(browser) == 0  # what is typed is text, not a pattern
    choose(browser, query="no such words anywhere")
    assert count(browser) == 0 and "Widen the steps" in js(
        browser, "return document.querySelector('#rollouts').innerText"
    )


def test_answers_are_drawn_with_their_spans_and_their_heat(browser, page, logged):
    show(browser, page)
    choose(browser, run="run:0", sort="early")
    for item, row in zip(listed(browser), logged, strict=False):
        assert (item["step"], item["response"].removesuffix("end")) == (row["step"], row["response"])
    script = """const at = document.querySelectorAll('#rollouts .response')[arguments[0]];
        const pieces = [...at.querySelectorAll('span')].map((s) => [s.textContent, s.className, s.style.background]);
        return pieces;"""
    marked = next(number for number, row in enumerate(logged[:8]) if row["poor"])
    row = logged[marked]
    poor = "".join(text for text, kind, _ in js(browser, script, marked) if "poor" in kind.split())
    assert all(quote in poor for quote in row["poor"])
    assert len(poor) <= sum(map(len, row["poor"]))
    js(browser, "document.querySelector('#rollouts .mode input[value=reward]').click()")
    heat = js(browser, script, marked)
    below = "".join(text for text, _, background in heat if "minus" in background)
    told = "".join(
        row["response"][s:e] for (s, e), value in zip(row["spans"], row["rewards"], strict=True) if value < 0
    )
    assert below == told
    assert all("poor" not in kind.split() for _, kind, _ in heat)


def test_a_token_tells_its_numbers(browser, page, logged):
    show(browser, page)
    choose(browser, run="run:0", sort="early")
    js(browser, "document.querySelector('#rollouts .response .t').click()")
    tip = js(browser, "return document.getElementById('tip').innerText")
    row = logged[0]
    assert f"token 1 of {len(row['tokens'])}" in tip
    assert f"{row['advantages'][0]:+.3f}".replace("-", "−")[:4] in tip
    moved = row["new_logprobs"][0] - row["old_logprobs"][0]
    assert f"{moved:+.3f}".replace("-", "−")[:4] in tip
    js(browser, "document.querySelector('#rollouts .response').focus()")
    from selenium.webdriver.common.keys import Keys

    browser.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert f"token 2 of {len(row['tokens'])}" in js(browser, "return document.getElementById('tip').innerText")
    browser.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert js(browser, "return document.getElementById('tip').hidden")


def test_code_keeps_its_emoji_and_its_labels(browser, page):
    """A token that is half an emoji shares its cell, and offsets count characters, not UTF-16 units."""
    show(browser, page)
    choose(browser, task="kodcode")
    script = """const at = document.querySelector('#rollouts .response');
        return [...at.querySelectorAll('span')].map((s) => [s.textContent, s.className]);"""
    pieces = js(browser, script)
    kinds = {kind: "".join(t for t, k in pieces if kind in k.split()) for kind in ("poor", "neutral", "good")}
    assert kinds == {"poor": "return n % 2 == 1", "neutral": "print(is_even(2))", "good": ""}
    assert "improvable" in js(browser, "return document.querySelector('#rollouts .legend').innerText")
    answer = "🙂 " + synthetic_runs.CODE_ANSWER
    run = synthetic_runs.write_code_run(page.parent / "emoji", answer=answer)
    show(browser, build(page.parent / "emoji.html", run))
    pieces = js(browser, script)
    assert "".join(text for text, kind in pieces if "poor" in kind.split()) == "return n % 2 == 1"
    assert "".join(text for text, _ in pieces) == answer
    tokens = js(browser, "return document.querySelector('#rollouts .t').dataset.tokens")
    assert tokens == "0 1"


def test_early_and_late_are_the_first_and_the_last_answer(browser, page, logged):
    show(browser, page)
    wait_for(browser, "document.querySelector('#early[data-ready]')")
    script = "return [...document.querySelectorAll('#early .response')].map((item) => item.rollout.response)"
    own = [row for row in logged if row["run"] == "text2grad"]
    for position, prompt in enumerate(dict.fromkeys(row["id"] for row in own)):
        if position == 3:
            break
        answers = [row for row in own if row["id"] == prompt]
        last = next(row for row in answers if row["step"] == answers[-1]["step"])
        assert js(browser, script) == [answers[0]["response"], last["response"]]
        js(browser, "document.querySelector('#early .forth').click()")
        wait_for(browser, f"document.querySelector('#early').dataset.ready === '{position + 1}'")


def test_evaluation_answers_stand_side_by_side(browser, page):
    show(browser, page)
    wait_for(browser, "document.querySelector('#answers[data-ready]')")
    before, after = (json.loads((page.parent / f"{name}.result.json").read_text()) for name in ("base", "text2grad"))
    first = next(iter(before["records"]))
    shown = js(browser, "return [...document.querySelectorAll('#answers .response')].map((item) => item.textContent)")
    assert shown == [side["records"][first]["response"] for side in (before, after)]


def test_charts_tell_values_and_save_themselves(browser, page):
    show(browser, page, dark=True)
    told = js(
        browser,
        """const chart = document.querySelector('.grid svg.chart'), box = chart.getBoundingClientRect();
           chart.dispatchEvent(new PointerEvent('pointermove', {clientX: box.left + box.width / 2, bubbles: true}));
           return [document.getElementById('tip').innerText, !!chart.querySelector('.cursor')];""",
    )
    assert told[0].startswith("Step ") and "Text2Grad" in told[0] and told[1]
    saved = js(browser, "return window.svgText(document.querySelector('.grid svg.chart'))")
    from xml.etree import ElementTree

    root = ElementTree.fromstring(saved)
    assert root.tag.endswith("svg") and root.get("width") == "360"
    assert "class=" not in saved and "var(" not in saved and 'stroke="rgb(11, 103, 178)"' in saved  # the light colours
    assert js(browser, "return document.documentElement.dataset.theme") is None


def test_the_page_prints(browser, page):
    import base64

    show(browser, page)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
    pdf = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {})["data"])
    assert pdf.startswith(b"%PDF") and len(pdf) > 50_000


def test_hostile_text_runs_nothing(browser, tmp_path):
    run, result = write_hostile(tmp_path)
    page = build(tmp_path / "report.html", run, "--results", result)
    show(browser, page)
    choose(browser, query="window.pwned")
    assert count(browser) == 2
    js(browser, "document.querySelectorAll('details').forEach((item) => { item.open = true; })")
    assert js(browser, "return window.pwned ?? null") is None
    assert js(browser, "return document.querySelectorAll('main img, main script').length") == 0
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_a_run_with_nothing_rescored_says_so(browser, tmp_path):
    run = write_run(tmp_path / "run", [hand_made(1, new_logprobs=None, kl=None)])
    show(browser, build(tmp_path / "report.html", run))
    js(browser, "document.querySelector('#rollouts .mode input[value=shift]').click()")
    js(browser, "document.querySelector('#rollouts .response .t').click()")
    assert "not logged" in js(browser, "return document.getElementById('tip').innerText")
    assert "No prompt was answered both early and late" in js(
        browser, "return document.querySelector('#early').innerText"
    )
