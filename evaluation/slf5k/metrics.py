"""Metrics of a summary against its reference and its post. Each returns record id -> value (or row of sums)."""

import re
from collections.abc import Mapping
from difflib import SequenceMatcher

from evaluation.results import Figure
from text2grad.critics.programs import english
from text2grad.critics.programs.slf5k.facts import read_post, read_summary

Texts = Mapping[str, str]
RUN = 6
"""Words in a row that count as copied."""

_WORD = re.compile(r"\w+(?:['’]\w+)*")


def words(text: str) -> list[str]:
    """Lower-case words without punctuation."""
    return _WORD.findall(text.lower())


def rouge(responses: Texts, references: Texts) -> dict[str, Figure]:
    """ROUGE-1, -2 and -L, F1, with stemming (rouge-score's implementation of Lin 2004), mean over records.

    rouge-score reads a to z and digits; references without any are left out, where even equal texts would get 0.
    """
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)
    readable = {key: text for key, text in references.items() if re.search("[a-z0-9]", text.lower())}
    scores = {key: scorer.score(text, responses[key]) for key, text in readable.items()}
    return {
        name: Figure.mean({key: score[name].fmeasure for key, score in scores.items()}) for name in scorer.rouge_types
    }


def bleu(responses: Texts, references: Texts) -> Figure:
    """Corpus BLEU, 0 to 100, of sacrebleu (13a tokens, exponential smoothing); beside a record its sentence BLEU."""
    from sacrebleu.metrics import BLEU

    sentence = BLEU(effective_order=True)
    each = {key: sentence.sentence_score(responses[key], [references[key]]) for key in references}
    rows = {key: [*found.counts, *found.totals, found.sys_len, found.ref_len] for key, found in each.items()}
    return Figure(rows, "bleu", {key: found.score for key, found in each.items()})


def longest_copy(responses: Texts, posts: Texts) -> Figure:
    """Length in words of the longest run of words that response and post share."""
    lengths = {}
    for key, response in responses.items():
        matcher = SequenceMatcher(None, words(posts[key]), words(response), autojunk=False)
        lengths[key] = matcher.find_longest_match().size
    return Figure.mean(lengths)


def copied_words(responses: Texts, posts: Texts) -> Figure:
    """The share of all words that lie in a run of ``RUN`` or more words which the post has in this order."""
    rows = {}
    for key, response in responses.items():
        own, known = words(response), {run for _, run in english.ngrams(words(posts[key]), RUN)}
        copied = {start + i for start, run in english.ngrams(own, RUN) if run in known for i in range(RUN)}
        rows[key] = (float(len(copied)), float(len(own)))
    return Figure(rows)


def facts_told(responses: Texts, posts: Texts) -> Figure:
    """The share of each post's key facts (by the rules of the programmatic critic) that its response names, mean.

    It is a recall: the order of words and what is wrong do not count.
    """
    shares = {}
    for key, response in responses.items():
        post = read_post(posts[key])
        summary = read_summary(response, english.words(response), post)
        if post.keys:
            named = summary.told(0, len(summary.words))
            shares[key] = sum(fact in named for fact in post.keys) / len(post.keys)
    return Figure.mean(shares)


def text_figures(responses: Texts, posts: Texts, references: Texts) -> dict[str, Figure]:
    """All that needs no model. Metrics against the reference are over the records that have one."""
    compared = rouge(responses, references) | {"bleu": bleu(responses, references)} if references else {}
    return compared | {
        "words": Figure.mean({key: len(words(response)) for key, response in responses.items()}),
        "longest_copy": longest_copy(responses, posts),
        "copied_words": copied_words(responses, posts),
        "facts_told": facts_told(responses, posts),
    }
