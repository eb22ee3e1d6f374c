"""How exactly, and how fast, quotes are mapped to tokens: this project's mapping against matching the quote's words.

    python benchmarks/alignment.py --human qa_feedback_100.jsonl --slf5k posts_with_summaries.json \\
        --kodcode solutions_with_tests.json --ultrafeedback responses.json

Any of the four files can be left out. Both methods get the quotes alone. The right tokens are known from character
offsets. People marked wrong passages (``--human``: ``{"response", "spans": [{"start", "end", "quote"}]}`` a line), or
intervals are drawn at random from the responses of a task's file, or the task's program quotes them, if each of its
quotes occurs in the response once.
"""

import random
import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tabulate import tabulate

from benchmarks import EARLIER
from text2grad.configs import parse, setting
from text2grad.critics import load_critic
from text2grad.errors import InputError, command
from text2grad.feedback import Feedback
from text2grad.models import load_tokenizer
from text2grad.records import load_json, load_records, save_json
from text2grad.tasks import Interval, Task, get_task
from text2grad.token_rewards import token_rewards
from text2grad.token_text import token_spans

TASKS = ("slf5k", "kodcode", "ultrafeedback")
WAYS = ("text2grad", "word matching")
MOST_WORDS = 20
MOST_LINES = 3


@dataclass
class AlignmentConfig:
    REMOVED = EARLIER

    human: str = setting("", "answers with spans that people marked, JSONL")
    slf5k: str = setting("", "posts with summaries")
    kodcode: str = setting("", "solutions with tests")
    ultrafeedback: str = setting("", "questions with answers")
    output_path: str = setting(
        "runs/benchmarks/alignment.json", "JSON file for the figures", "--output_file", "--output"
    )
    tokenizer: str = setting("smollm2", "the tokenizer whose tokens are labelled")
    split: float = setting(0.1, "share of tokens replaced by smaller ones, so that ids are not canonical")
    repeats: int = setting(5, "timed passes over the data")
    seed: int = setting(0, "seed of the intervals and of the tokens that are replaced")


@dataclass(frozen=True)
class MarkedResponse:
    """A response and the intervals of it that are quoted."""

    id: str
    text: str
    places: list[Interval]

    @property
    def quotes(self) -> list[str]:
        return [self.text[slice(*place)] for place in self.places]

    @property
    def repeated(self) -> bool:
        """Whether some quote occurs more than once, so that it alone does not say where."""
        return any(len(occurrences(quote, self.text)) > 1 for quote in self.quotes)


def by_offsets(ids: list[int], tokenizer, marked: Sequence[Interval]) -> list[float]:
    """The right labels: −1 where all visible characters of a token lie inside one marked interval."""
    text, spans = token_spans(ids, tokenizer)
    labels = []
    for start, end in spans:
        visible = [char for char in range(start, end) if not text[char].isspace()] or list(range(start, end))
        inside = any(visible and low <= visible[0] and visible[-1] < high for low, high in marked)
        labels.append(-1.0 if inside else 0.0)
    return labels


def occurrences(quote: str, text: str) -> list[int]:
    """Where exactly equal text begins; occurrences may overlap."""
    return [match.start() for match in re.finditer(f"(?={re.escape(quote)})", text)]


def random_intervals(task: Task, text: str, rng: random.Random) -> list[Interval]:
    """One to four intervals of the judged text, drawn independently of one another.

    Of prose, 1 to 20 words. Of code, one to three whole lines, or as often a piece of a line: 1 to 20 of its names,
    numbers and signs.
    """
    return [_piece(text, *rng.choice(task.rewarded(text)), task.is_code, rng) for _ in range(rng.randint(1, 4))]


def _piece(text: str, start: int, end: int, is_code: bool, rng: random.Random) -> Interval:
    def found(pattern: str, low: int, high: int) -> list[Interval]:
        return [match.span() for match in re.compile(pattern).finditer(text, low, high)]

    units, most = found(r"\S+", start, end), MOST_WORDS
    if is_code:
        units, most = found(r"[^\s].*", start, end), MOST_LINES
        if rng.random() < 0.5:
            units, most = found(r"\w+|[^\w\s]", *rng.choice(units)), MOST_WORDS
    first = rng.randrange(len(units))
    last = min(first + rng.randint(1, most), len(units)) - 1
    return units[first][0], units[last][1]


def by_people(path: str) -> list[MarkedResponse]:
    rows = []
    for number, row in enumerate(load_json(path)):
        if not isinstance(row, dict) or not {"response", "spans"} <= set(row):
            raise InputError(f"{path}: row {number} lacks 'response' or 'spans'; see benchmarks/alignment.md")
        places = [(span["start"], span["end"]) for span in row["spans"]]
        rows.append(MarkedResponse(str(row.get("id", number)), row["response"], places))
        if rows[-1].quotes != [span["quote"] for span in row["spans"]]:
            raise InputError(f"{path}: row {number}: a quote differs from the text at its offsets; correct the row")
    return rows


def by_random(path: str, task: Task, seed: int) -> list[MarkedResponse]:
    texts = {key: task.response(record) for key, record in load_records(path, task).items()}
    return [
        MarkedResponse(key, text, random_intervals(task, text, random.Random(f"{seed} {key}")))
        for key, text in texts.items()
    ]


def by_program(path: str, task: Task) -> list[MarkedResponse]:
    """Responses in which each of the program's quotes, good or poor, occurs exactly once."""
    records = load_records(path, task)
    texts = [task.response(record) for record in records.values()]
    judgements = load_critic("programmatic", task)(
        [task.prompt(record) for record in records.values()], texts, list(records.values())
    )
    rows = []
    for key, text, item in zip(records, texts, judgements, strict=True):
        quotes = [*item.poor, *item.good] if isinstance(item, Feedback) else []
        begins = [occurrences(quote, text) for quote in quotes]
        if quotes and all(len(found) == 1 for found in begins):
            rows.append(MarkedResponse(key, text, [(b[0], b[0] + len(q)) for b, q in zip(begins, quotes, strict=True)]))
    return rows


def sources(config: AlignmentConfig) -> list[tuple[str, str, Task, list[MarkedResponse]]]:
    """(data, who quotes, task, responses) for each file that is given."""
    result = []
    if config.human:
        result.append(("answers", "people", get_task("ultrafeedback"), by_people(config.human)))
    for name in TASKS:
        if path := getattr(config, name):
            task = get_task(name)
            result.append((name, "random intervals", task, by_random(path, task, config.seed)))
            result.append((name, "the program", task, by_program(path, task)))
    if not result:
        raise InputError("no data; give --human, --slf5k, --kodcode or --ultrafeedback a file")
    return result


def by_words(ids: list[int], tokenizer, quotes: list[str]) -> list[float]:
    """The simple way: decode each token and label runs of tokens that spell the quote's words without punctuation."""
    pieces = [re.sub(r"\W", "", tokenizer.decode([token])).lower() for token in ids]
    labels = [0.0] * len(ids)
    for quote in quotes:
        wanted = "".join(re.findall(r"\w", quote)).lower()
        for first in range(len(ids)):
            spelled, last = "", first
            while last < len(ids) and wanted.startswith(spelled + pieces[last]) and spelled != wanted:
                spelled += pieces[last]
                last += 1
            if spelled == wanted and pieces[first]:
                for token in range(first, last):
                    labels[token] = -1.0 if pieces[token] else 0.0
                break
    return labels


def by_text2grad(ids: list[int], tokenizer, quotes: list[str], task: Task) -> list[float]:
    """This project's mapping; all quotes are poor, so their tokens get −1."""
    return token_rewards(ids, tokenizer, Feedback("c", poor=quotes), task).values


def retokenized(ids: list[int], tokenizer, share: float, rng: random.Random) -> list[int]:
    """The same text in other ids, as sampling produces them: some tokens are spelled out in smaller ones."""

    def encode(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    result = []
    for token in ids:
        piece = tokenizer.decode([token])
        if rng.random() < share and len(piece) > 2 and piece.isascii():
            cut = rng.randrange(1, len(piece))
            halves = [token for half in (piece[:cut], piece[cut:]) for token in encode(half)]
            if tokenizer.decode(halves) == piece:
                result += halves
                continue
        result.append(token)
    return result


@dataclass
class LabelledResponse:
    """One response: the right labels, those of each way, and the seconds of each pass."""

    row: MarkedResponse
    truth: list[float]
    labels: dict[str, list[float]]
    seconds: dict[str, list[float]]


def compare_mappings(
    rows: Sequence[MarkedResponse], task: Task, tokenizer, config: AlignmentConfig
) -> list[LabelledResponse]:
    """Both ways over all responses, pass after pass."""
    ways: dict[str, Callable[[list[int], list[str]], list[float]]] = {
        "text2grad": lambda ids, quotes: by_text2grad(ids, tokenizer, quotes, task),
        "word matching": lambda ids, quotes: by_words(ids, tokenizer, quotes),
    }
    rng, prepared = random.Random(config.seed), []
    for row in rows:
        ids = retokenized(tokenizer(row.text, add_special_tokens=False)["input_ids"], tokenizer, config.split, rng)
        if token_spans(ids, tokenizer)[0] != row.text:
            raise InputError(
                f"response {row.id}: {config.tokenizer} does not give back its text; use another tokenizer"
            )
        truth = by_offsets(ids, tokenizer, row.places)
        prepared.append((ids, LabelledResponse(row, truth, {}, {name: [] for name in ways})))
    for _ in range(config.repeats):
        for name, way in ways.items():
            for ids, item in prepared:
                begun = time.perf_counter()
                found = way(ids, item.row.quotes)
                item.seconds[name].append(time.perf_counter() - begun)
                item.labels[name] = [-1.0 if value < 0 else 0.0 for value in found]
    return [item for _, item in prepared]


def scores_of(items: Sequence[LabelledResponse], way: str) -> dict[str, float]:
    """Shares over all tokens, over all marked tokens, and over whole responses; the median time of one."""
    pairs = [(t, g) for item in items for t, g in zip(item.truth, item.labels[way], strict=True)]
    marked = [(t, g) for t, g in pairs if t]
    passes = zip(*(item.seconds[way] for item in items), strict=True)
    return {
        "tokens right": sum(t == g for t, g in pairs) / len(pairs),
        "marked tokens found": sum(t == g for t, g in marked) / len(marked) if marked else 1.0,
        "responses entirely right": sum(item.truth == item.labels[way] for item in items) / len(items),
        "microseconds per response": statistics.median(map(sum, passes)) / len(items) * 1e6,
    }


def summarise(data: str, quotes: str, items: Sequence[LabelledResponse]) -> dict:
    return {
        "data": data,
        "quotes": quotes,
        "responses": len(items),
        "tokens": sum(len(item.truth) for item in items),
        **{way: scores_of(items, way) for way in WAYS},
        "differing": [item.row.id for item in items if item.truth != item.labels["text2grad"]],
    }


def alignment_table(results: Sequence[dict]) -> str:
    """A row per data set and kind of quotes; in each cell text2grad's figure, then word matching's."""
    rows = []
    for result in results:
        ours, words = (result[way] for way in WAYS)
        shares = [f"{_percent(ours[name])}, {_percent(words[name])}" for name in list(ours)[:3]]
        times = ", ".join(f"{way['microseconds per response'] / 1000:.2f}" for way in (ours, words))
        label = f"{result['data']}: {result['quotes']}"
        rows.append([label, str(result["responses"]), str(result["tokens"]), *shares, times])
    names = ["tokens right, %", "marked tokens found, %", "responses entirely right, %", "ms per response"]
    header = ["text2grad, word matching", "responses", "tokens", *names]
    return tabulate(rows, header, tablefmt="github", disable_numparse=True)


def _percent(share: float) -> str:
    """Never rounded up to 100."""
    return "100" if share == 1 else f"{min(100 * share, 99.99):.2f}"


@command
def main() -> None:
    config = parse(AlignmentConfig)
    tokenizer, results = load_tokenizer(config.tokenizer), []
    for data, quotes, task, rows in sources(config):
        items = compare_mappings(rows, task, tokenizer, config)
        for repeated in (False, True):
            chosen = [item for item in items if item.row.repeated == repeated]
            if chosen:
                results.append(
                    summarise(data, quotes + (", a quote occurs more than once" if repeated else ""), chosen)
                )
    save_json(config.output_path, results)
    print(alignment_table(results))


if __name__ == "__main__":
    main()
