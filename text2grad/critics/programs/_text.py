"""Words, sentences and quotes: what the programs need to read English prose without a model."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from nltk.stem.snowball import EnglishStemmer

_WORD = re.compile(r"[^\W_]+(?:['’.,:\-][^\W_]+)*")
_SENTENCE_END = re.compile(r"[.!?…。！？]+[\"'”’)\]]*(?=\s|$)|\n\s*")
_ABBREVIATIONS = frozenset("mr mrs ms dr st vs etc e.g i.e approx no".split())
_STEMMER = EnglishStemmer()

DETERMINERS = frozenset("a an the my your our their its every".split())
AUXILIARIES = frozenset(
    "am is are was were be been being do does did has have had having will would can could shall should may might must "
    "isn't aren't wasn't weren't don't doesn't didn't hasn't haven't hadn't won't wouldn't can't cannot couldn't "
    "shouldn't mustn't ain't gonna wanna got get gets getting".split()
)
PREPOSITIONS = frozenset(
    "of to in on at by for from with without about into onto over under after before during between against through "
    "until till since off out up down as than per via near around across behind beyond despite within toward towards "
    "upon along among amid except besides".split()
)
CONJUNCTIONS = frozenset(
    "and or but nor so yet because although though if unless while whereas whether when where why how that which who "
    "whom whose what".split()
)
PRONOUNS = frozenset(
    "i me you he him his she her hers it we us they them mine yours ours theirs myself yourself himself herself itself "
    "ourselves themselves i'm i've i'd i'll you're you've you'll he's she's it's we're we've they're they've they'd "
    "that's there's what's let's who's he'd she'd we'd he'll she'll it'll they'll".split()
)
_PARTICLES = frozenset(
    "this these those there here not no yes then now too also just only even still very really more most less least "
    "much many some any all both each few other another such own same again ever never always often sometimes already "
    "soon once however therefore instead rather quite almost maybe perhaps".split()
)
FUNCTION_WORDS = DETERMINERS | AUXILIARIES | PREPOSITIONS | CONJUNCTIONS | PRONOUNS | _PARTICLES

_COMMON = """
want wants need ask know wonder advice help advise tip unsure uncertain sure worry worried concern consider decide think
feel feeling try make keep take give tell say said mean find look see hear seem go come put use like let start stop
begin end continue happen become stay leave turn move bring show talk speak call wait change work deal handle manage
cause result lead make turn allow plan hope expect believe realize realise understand explain remember forget agree
refuse avoid receive send suggest offer person people man woman guy girl someone somebody anyone everyone everybody
nobody nothing something anything everything thing stuff way kind sort lot bit part place side case point fact reason
problem issue situation matter idea question answer trouble choice option chance time times day days week weeks month
months year years hour hours minute minutes today tonight yesterday tomorrow morning evening night weekend ago later
recently lately currently now next last first second final previous new old young big small little long short good bad
better best worse worst great nice fine okay ok right wrong true real hard easy difficult different able possible
likely due enough whole full half high low late early several couple pair number amount around
instead despite actually basically honestly simply finally suddenly usually apparently probably definitely completely
totally especially eventually constantly repeatedly due anyway out upset afraid scared happy sad angry frustrated
annoyed confused torn struggle struggling unhappy anxious nervous guilty fair unfair strange weird life world name
friend friends one ones two back away together alone
""".split()

_IRREGULAR = {
    form: base
    for base, forms in {
        "keep": "kept",
        "go": "went gone goes",
        "leave": "left",
        "tell": "told",
        "say": "said",
        "think": "thought",
        "buy": "bought",
        "bring": "brought",
        "teach": "taught",
        "catch": "caught",
        "find": "found",
        "make": "made",
        "take": "took taken",
        "give": "gave given",
        "get": "got gotten",
        "come": "came",
        "become": "became",
        "know": "knew known",
        "feel": "felt",
        "sell": "sold",
        "pay": "paid",
        "break": "broke broken",
        "steal": "stole stolen",
        "choose": "chose chosen",
        "write": "wrote written",
        "drive": "drove driven",
        "eat": "ate eaten",
        "see": "saw seen",
        "lose": "lost",
        "lend": "lent",
        "send": "sent",
        "spend": "spent",
        "meet": "met",
        "run": "ran",
        "begin": "began begun",
        "forget": "forgot forgotten",
        "throw": "threw thrown",
        "grow": "grew grown",
        "wear": "wore worn",
        "speak": "spoke spoken",
        "wake": "woke woken",
        "sleep": "slept",
        "hear": "heard",
        "hold": "held",
        "build": "built",
        "fight": "fought",
        "fall": "fell fallen",
        "win": "won",
        "lead": "led",
        "sit": "sat",
        "stand": "stood",
        "understand": "understood",
        "ride": "rode ridden",
        "bite": "bit bitten",
        "hide": "hid hidden",
        "do": "done",
        "child": "children",
        "person": "people",
        "man": "men",
        "woman": "women",
        "wife": "wives",
        "tooth": "teeth",
        "foot": "feet",
        "mouse": "mice",
        "life": "lives",
    }.items()
    for form in forms.split()
}

_NUMBERS = {
    word: str(value)
    for value, word in enumerate(
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
        "eighteen nineteen twenty".split()
    )
} | {"thirty": "30", "forty": "40", "fifty": "50", "sixty": "60", "eighty": "80", "ninety": "90", "hundred": "100"}

_SYNONYMS = """
mum mom mother mama mommy|dad father daddy|parent folks|boyfriend bf|girlfriend gf|partner significant-other so
kid child toddler|boss manager supervisor|job work employment position employer workplace|buy purchase order
money cash funds|angry mad furious upset annoyed irritated|start begin|apartment flat|home house|car vehicle
roommate housemate flatmate|fix repair mend|quit resign leave|sick ill unwell|doctor physician gp|pet animal
argue argument fight quarrel|scared afraid terrified fear frightened|phone cell cellphone smartphone mobile
computer pc laptop desktop|college university uni|teacher instructor professor|grade mark score|rent lease
pay payment|big large huge|small little tiny|break broke damage damaged|refuse decline deny reject
sad unhappy depressed|happy glad pleased|wedding marriage marry|trip travel journey vacation holiday|hurt injure pain
film movie|shop store|photo picture image pic|dog puppy pup|cat kitten kitty|weird strange odd|help assist
tired exhausted exhaustion|rude impolite disrespectful|expensive costly pricey|cheap inexpensive|police cop officer
lawyer attorney|friend buddy mate pal|meal dinner supper|clothes clothing outfit|noisy loud noise|neighbor neighbour
worker coworker colleague co-worker|salary wage paycheck|fire sack dismiss|ask request|lie dishonest lied
nervous anxious anxiety|exam test|class course lesson|injury injured|annoy bother irritate|guy man bloke dude
girl woman lady|hide conceal|steal theft stolen|forget forgot|secret secretly|sister sibling|return refund
delay late postpone|cancel call-off|contract agreement|bill invoice fee charge cost price|medicine medication meds drug
clean tidy cleaning|dirty messy mess|replace replacement swap switch|show series|disappoint letdown disappointing
improve improvement better|choose pick select choice|send mail email|talk speak chat conversation|angry anger
""".replace("\n", "|").split("|")


@dataclass(frozen=True)
class Word:
    """A word and its place. ``concept`` is what it counts as: its stem, or its synonyms' common name."""

    text: str
    start: int
    end: int
    concept: str
    is_function: bool
    is_common: bool

    @property
    def is_content(self) -> bool:
        return not self.is_function

    @property
    def key(self) -> str:
        """The word as it is compared for literal copying."""
        return self.text.lower().replace("’", "'")


def _plain(text: str) -> str:
    return text.lower().replace("’", "'").removesuffix("'s").strip(".,:")


def _stem(text: str) -> str:
    text = _IRREGULAR.get(text, text)
    return _STEMMER.stem(text)


_CONCEPT = {_stem(word): _stem(group.split()[0]) for group in reversed(_SYNONYMS) for word in group.split()}
COMMON_CONCEPTS = frozenset(_CONCEPT.get(_stem(word), _stem(word)) for word in _COMMON) | frozenset(map(_stem, _COMMON))


@lru_cache(maxsize=65536)
def concept(text: str) -> str:
    """What a word counts as: inflections and simple synonyms share one concept, number words become digits."""
    plain = _plain(text)
    if plain in _NUMBERS:
        return _NUMBERS[plain]
    if any(char.isdigit() for char in plain):
        return plain.replace(",", "")
    stem = _stem(plain)
    return _CONCEPT.get(stem, stem)


@lru_cache(maxsize=65536)
def _kind(text: str) -> tuple[str, bool, bool]:
    plain = _plain(text)
    name = concept(text)
    return name, plain in FUNCTION_WORDS or text.lower().replace("’", "'") in FUNCTION_WORDS, name in COMMON_CONCEPTS


def words(text: str) -> list[Word]:
    """The words of a text, in order."""
    return [Word(match[0], match.start(), match.end(), *_kind(match[0])) for match in _WORD.finditer(text)]


def sentences(text: str, found: list[Word]) -> list[tuple[int, int, bool]]:
    """Word intervals ``[i, j)`` of the sentences, and whether each one has its end mark."""
    cuts = []
    position = 0
    for match in _SENTENCE_END.finditer(text):
        while position < len(found) and found[position].end <= match.start():
            position += 1
        last = found[position - 1] if position else None
        if last is not None and match[0].strip() == "." and last.text.lower() in _ABBREVIATIONS:
            continue
        cuts.append((position, bool(match[0].strip())))
    intervals, begin = [], 0
    for position, ended in [*cuts, (len(found), False)]:
        if position > begin:
            intervals.append((begin, position, ended))
            begin = position
        elif ended and intervals and not intervals[-1][2]:
            intervals[-1] = (*intervals[-1][:2], True)
    return intervals


def ngrams(items: list[str], n: int) -> Iterable[tuple[int, tuple[str, ...]]]:
    """``(position, n-gram)`` pairs."""
    return ((i, tuple(items[i : i + n])) for i in range(len(items) - n + 1))


def unique_quote(text: str, start: int, end: int) -> str:
    """The quote ``text[start:end]``, grown word by word (to the left, then to the right) until it occurs only once.

    A quote marks every place where it occurs; a span that means one place must not read the same elsewhere.
    """
    while True:
        quote = text[start:end]
        if text.find(quote) == start and text.find(quote, start + 1) == -1:
            return quote
        left = text[:start].rstrip()
        if left:
            start = max(left.rfind(" "), left.rfind("\n")) + 1
            continue
        right = text[end:]
        step = re.match(r"\s*\S+", right)
        if step is None:
            return quote
        end += step.end()
