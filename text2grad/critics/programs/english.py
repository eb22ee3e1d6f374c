"""Words, sentences and quotes: what the programs need to read English prose without a model.

Libraries that were tried on the quickstart's posts, and why the lists are ours:

- lemminflect (inflections): 24 of these 127 irregular forms have several lemmas (saw: see, saw), so it needs a tagger.
- wordfreq (common words): the common words here are those that carry no fact of a post, frequent or not. By frequency
  car, bank, job and money would be among them.
- pysbd (sentences): 483 sentences where this file finds 482, in 19 times the time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import count
from os.path import commonprefix
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nltk.stem.snowball import EnglishStemmer


def listed(text: str) -> frozenset[str]:
    """The words of a list."""
    return frozenset(text.split())


_WORD = re.compile(r"\d[\d.,:]*\d(?!\w)|[^\W_]+(?:['’.][^\W_]+)*")
_SENTENCE_END = re.compile(r"(?<![.!?…])[.!?…。！？]+[\"'”’)\]]*(?=\s|$)|[。！？]+[」』”’]*|\n\s*")
_ABBREVIATIONS = listed("mr mrs ms dr st vs etc e.g i.e approx no")

_GROUPS = """
a: a an
the: the every each another
my: my our their its his your whose
her: her
I: i he she we they who
it: you it
I'm: i'm you're he's she's it's we're they're that's there's what's who's i've you've we've they've i'd they'd he'd
I'm: she'd we'd i'll you'll we'll they'll he'll she'll it'll let's
me: me him us them myself yourself himself herself itself ourselves themselves mine yours ours theirs hers
this: this that these those
what: what which how whether why where
when: when if because although though unless while whereas until till since so yet as than before after once
and: and or but nor
is: am is are was were isn't aren't wasn't weren't ain't
be: be been being
have: have has had having hasn't haven't hadn't
do: do does did don't doesn't didn't
will: will would can could shall should may might must won't wouldn't can't cannot couldn't shouldn't mustn't gonna
will: wanna
to: to
of: of
in: in on at by for from with without about into onto over under during between against through near around across
in: behind beyond despite within toward towards upon along among amid except besides per via
up: off out up down away back there here home
not: not never always often also just only even still really already now then ever soon sometimes too again however
not: maybe perhaps instead very more most less least rather quite almost
some: some any all both few other others such own same much many no else several lot
"""
GROUP_OF = {
    word: name for name, _, own in (line.partition(": ") for line in _GROUPS.split("\n")) for word in own.split()
}
"""Small words by what may stand before and behind them."""
_AUXILIARIES = {word for word, group in GROUP_OF.items() if group in ("is", "be", "have", "do", "will")}
_AUXILIARIES |= listed("get gets getting got")
FUNCTION_WORDS = GROUP_OF.keys() | _AUXILIARIES | listed("therefore whom yes")
FUNCTION_WORDS -= listed("away back home lot several we'll")  # words that count as content, wherever they stand

_COMMON = listed(
    """
want wants need ask know wonder advice help advise tip unsure uncertain sure worry worried concern consider
decide think feel feeling try make keep take give tell say said mean find look see hear seem go come put use
like let start stop begin end continue happen become stay leave turn move bring show talk speak call wait
change work deal handle manage cause result lead allow plan hope expect believe realize realise understand
explain remember forget agree refuse avoid receive send suggest offer person people man woman guy girl someone
somebody anyone everyone everybody nobody nothing something anything everything thing stuff way kind sort lot
bit part place side case point fact reason problem issue situation matter idea question answer trouble choice
option chance time times day days week weeks month months year years hour hours minute minutes today tonight
yesterday tomorrow morning evening night weekend ago later recently lately currently now next last first
second final previous new old young big small little long short good bad better best worse worst great nice
fine okay ok right wrong true real hard easy difficult different able possible likely due enough whole full
half high low late early several couple pair number amount around instead despite actually basically honestly
simply finally suddenly usually apparently probably definitely completely totally especially eventually
constantly repeatedly anyway out upset afraid scared happy sad angry frustrated annoyed confused torn struggle
struggling unhappy anxious nervous guilty fair unfair strange weird life world name friend friends one ones
two back away together alone course else normal whatever nearly exactly single done main usual favorite recent
certain entire pretty mostly rest beginning decision everyday general various total kinda gonna spend meet met
anymore older younger bigger smaller longer shorter higher lower earlier harder easier oldest monday tuesday
wednesday thursday friday saturday sunday january february march april june july august september october
november december yesterday weekly daily step set clear please hi hey
    """
)

_IRREGULAR_FORMS = """
keep kept, go went gone goes, leave left, tell told, say said, think thought, buy bought, bring brought, teach
taught, catch caught, find found, make made, take took taken, give gave given, get got gotten, come came,
become became, know knew known, feel felt, sell sold, pay paid, break broke broken, steal stole stolen, choose
chose chosen, write wrote written, drive drove driven, eat ate eaten, see saw seen, lose lost, lend lent, send
sent, spend spent, meet met, run ran, begin began begun, forget forgot forgotten, throw threw thrown, grow
grew grown, wear wore worn, speak spoke spoken, wake woke woken, sleep slept, hear heard, hold held, build
built, fight fought, fall fell fallen, win won, lead led, sit sat, stand stood, understand understood, ride
rode ridden, bite bit bitten, hide hid hidden, do done, child children, person people, man men, woman women,
wife wives, tooth teeth, foot feet, mouse mice, life lives, hurt hurts, swim swam swum, shrink shrank shrunk,
drink drank drunk, freeze froze frozen, draw drew drawn, blow blew blown, hang hung, shake shook shaken, stick
stuck, spill spilt, burn burnt, learn learnt, sing sang sung, ring rang rung, feed fed, shoot shot, dig dug,
swear swore sworn, tear tore torn, fly flew flown, lie lay lain lying, light lit, seek sought
"""
IRREGULAR = {form: base for base, *forms in map(str.split, _IRREGULAR_FORMS.split(",")) for form in forms}
"""The irregular forms of verbs and nouns, each with its base."""

VERBS = IRREGULAR.keys() - listed("children people men women wives teeth feet mice lives left")
VERBS |= set(IRREGULAR.values()) - listed("child person man woman wife tooth foot mouse life light")
VERBS |= listed(
    "want need ask know wonder consider decide think feel try find look see hear seem put use like let start stop "
    "begin end continue happen stay turn move show talk call wait change work deal handle cause lead allow plan hope "
    "expect believe realize understand explain remember agree refuse avoid receive send suggest offer say"
)
_SUBJECT_FORMS = {word for word, group in GROUP_OF.items() if group == "I'm"} - {"we'll"} | listed("i he she we they")
_AFTER_VERB = listed("a an the my our their his her your every me him it us them that no whether")

_UP_TO_TWELVE = "zero one two three four five six seven eight nine ten eleven twelve"
_NUMBERS = {word: str(value) for value, word in enumerate(_UP_TO_TWELVE.split())}
_NUMBERS |= {"fifteen": "15", "twenty": "20", "thirty": "30", "forty": "40", "fifty": "50", "hundred": "100"}

_RELATED_WORDS = """
mum mom mother mama mommy | dad father daddy | boyfriend bf | girlfriend gf | kid child toddler baby | son boy |
daughter girl | boss manager supervisor | job work employment employer workplace career | buy purchase | money
cash fund savings | owe debt | angry mad furious upset annoyed irritated anger | apartment flat | home house |
car vehicle auto | leave quit resign depart | roommate housemate flatmate | fix repair mend | sick ill unwell
illness sickness | doctor physician gp | reduce cut lower | argue argument fight quarrel dispute | scared afraid
terrified fear frightened terrify | phone cell cellphone smartphone | computer pc laptop desktop | college
university | teacher instructor professor | grade mark score | big large huge enormous | small little tiny |
break broke damage damaged crack | refuse decline deny reject denies | talk speak | wedding marriage marry bride
| travel journey vacation holiday trip | hurt injure pain ache sore soreness injury | film movie | shop store |
photo picture image pic | dog puppy pup | cat kitten kitty | weird strange odd | stubborn proud | tired
exhausted exhaustion | rude impolite disrespectful | expensive costly pricey | cheap inexpensive | police cop |
lawyer attorney | friend buddy mate pal | dinner supper | clothes clothing outfit | noisy loud noise thud |
neighbor neighbour | coworker colleague | salary wage paycheck | fire sack dismiss | lie dishonest | nervous
anxious anxiety | mail email | exam test | class course lesson | hide conceal secret secretly hidden | steal
theft stolen thief | sister sibling | brother sibling | delay late postpone | cancel cancellation | contract
agreement | bill invoice fee charge price | medicine medication meds drug | clean tidy | dirty messy mess |
replace replacement swap exchange | disappoint letdown disappointing | require demand insist | improve better |
choose pick select choice | send mail | return refund | old elderly aged | retire retirement | lend loan borrow
| miss missing absent | vanish disappear | warn warning | yell shout scream | teen teenager teenage | customer
client buyer | ban forbid prohibit | lunch meal dinner | agree accept | win won victory | die death dead died
funeral | pregnant pregnancy expecting | widow widowed | ignore disregard | allow permit let | rule policy |
raise increase rise soar climb | end finish complete | wrong incorrect mistake error | correct right | pay paid
| gift present | boring bored boredom | smell stink odor | trick hack | danger dangerous unsafe risk | embarrass
embarrassing ashamed | promote promotion | bike bicycle | sofa couch | cost price | suggest advise | praise
compliment | dislike hate | love adore | shop supermarket grocery | plane flight fly | drive driving driver |
error bug glitch | stop quit | slow sluggish | crash freeze | internet wifi network connection router | date
dating relationship | partner spouse | husband spouse | wife spouse | ex divorce divorced separated | split
divide share | gather collect | rent lease | landlord owner | tenant renter | injury wound | knowledge know |
kid child son daughter toddler | parent mom dad folks | prove proof evidence | guest visitor visit | bank
account | weekend saturday sunday | reject turn | stain mark spot | sew knit | own have | unhappy upset | sad
upset | confront accuse | worry concern | suspicious suspect suspicion | cover hide | enroll register sign |
forbid refuse | recover heal | attend join | deadline due | allergy allergic | pension retirement | bother
disturb | deduct withhold keep | complain complaint | bug insect | argue fight | discard throw | persuade
convince | rescue save | arrive come | credit acknowledge | rearrange reorganize | beg plead | donate donation |
lie fake pretend | purchase order | reimburse repay refund | fine penalty | meal food | apologize sorry apology
| unpaid free | sickness disease
"""


@dataclass(frozen=True)
class Word:
    """A word and its place. ``concept`` is what it counts as: its stem, or its value for a number."""

    text: str
    start: int
    end: int
    concept: str
    is_function: bool
    is_common: bool

    @property
    def key(self) -> str:
        """The word as it is compared for literal copying."""
        return self.text.lower().replace("’", "'")

    @property
    def is_number(self) -> bool:
        return any(char.isdigit() for char in self.concept)


@dataclass(frozen=True)
class Fault:
    """Words ``[start, end)`` of a response that are poor, and why.

    With ``spare``, facts among them are left alone: what they are used for is at fault, not they.
    """

    kind: str
    start: int
    end: int
    spare: bool = False


@lru_cache(maxsize=65536)
def concept(text: str) -> str:
    """What a word counts as: all inflections have one stem, number words are digits."""
    plain = text.lower().replace("’", "'").removesuffix("'s")
    if plain in _NUMBERS:
        return _NUMBERS[plain]
    if any(char.isdigit() for char in plain):
        return plain.replace(",", "")
    plain = IRREGULAR.get(plain, plain)
    return _stemmer().stem(plain)


@cache
def _stemmer() -> EnglishStemmer:
    from nltk.stem.snowball import EnglishStemmer  # nltk takes seconds, which a run with nothing to judge need not wait

    return EnglishStemmer()


@cache
def related_concepts() -> dict[str, frozenset[str]]:
    """Concept -> concepts that a summary may use in its place."""
    related: dict[str, set[str]] = {}
    for group in _RELATED_WORDS.split("|"):
        stems = {concept(word) for word in group.split()}
        for stem in stems:
            related.setdefault(stem, set()).update(stems - {stem})
    return {stem: frozenset(others) for stem, others in related.items()}


@cache
def _common_concepts() -> frozenset[str]:
    return frozenset(map(concept, _COMMON))


@lru_cache(maxsize=65536)
def _kind(text: str) -> tuple[str, bool, bool]:
    plain = text.lower().replace("’", "'")
    function = plain in FUNCTION_WORDS or plain.removesuffix("'s") in FUNCTION_WORDS
    return concept(text), function, concept(text) in _common_concepts()


def words(text: str) -> list[Word]:
    """The words of a text, in order. A compound with hyphens is several words."""
    return [Word(match[0], match.start(), match.end(), *_kind(match[0])) for match in _WORD.finditer(text)]


def same_family(one: str, other: str) -> bool:
    """Whether two stems look like derivations of one word (knit, knitter; allergi, allerg): nearly all is shared."""
    short, long = sorted((one, other), key=len)
    shared = len(commonprefix([short, long]))
    return shared >= max(4, len(short) - 1) and len(long) - len(short) <= 4


def has_verb(sentence: list[Word]) -> bool:
    """Whether some word looks like a verb, or a pronoun is its subject. Errs on the side of yes."""
    for word, following in zip(sentence, [*sentence[1:], None], strict=True):
        key = word.key
        if key in _AUXILIARIES or key in _SUBJECT_FORMS or key in VERBS or key.endswith(("ed", "ing")):
            return True
        if key.endswith("s") and (key[:-1] in VERBS or (following is not None and following.key in _AFTER_VERB)):
            return True
    return False


def sentence_ends(text: str, found: list[Word]) -> Iterator[tuple[int, re.Match]]:
    """``(number of words before it, match)`` of each end of a sentence; the dot of an abbreviation is none.

    Ours rather than a library's: line breaks and list items end sentences here, and places in the text are needed.
    """
    position = 0
    for match in _SENTENCE_END.finditer(text):
        while position < len(found) and found[position].end <= match.start():
            position += 1
        last = found[position - 1] if position else None
        if last is None or match[0].strip() != "." or last.text.lower() not in _ABBREVIATIONS:
            yield position, match


def sentences(text: str, found: list[Word]) -> list[tuple[int, int, bool]]:
    """Word intervals ``[i, j)`` of the sentences, and whether each one has its end mark."""
    cuts = [(position, bool(match[0].strip())) for position, match in sentence_ends(text, found)]
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


def excerpt(found: list[Word]) -> str:
    """The first few words, as a critique quotes them."""
    return f"“{' '.join(word.text for word in found[:6])}{'…' if len(found) > 6 else ''}”"


def unique_quote(text: str, start: int, end: int) -> str:
    """The quote ``text[start:end]``, grown word by word (to the left, then to the right) until it occurs only once.

    A quote marks every place where it occurs; a span that means one place must be found nowhere but there.
    """
    while True:
        quote = text[start:end]
        if len(quote) > 2000 or (text.find(quote) == start and text.find(quote, start + 1) == -1):
            return quote
        if left := text[:start].rstrip():
            start = max(left.rfind(" "), left.rfind("\n")) + 1
        elif step := re.match(r"\s*\S+", text[end:]):
            end += step.end()
        else:
            return quote


def quotes_of(text: str, found: list[Word], marked: set[int]) -> list[str]:
    """Exact quotes of the runs of marked words, each with the punctuation attached to its end."""
    quotes = []
    for i in sorted(marked):
        if i - 1 not in marked:
            j = next(j for j in count(i) if j + 1 not in marked)
            limit = found[j + 1].start if j + 1 < len(found) else len(text)
            end = next(at for at in count(found[j].end) if at == limit or text[at].isspace())
            quotes.append(unique_quote(text, found[i].start, end))
    return quotes
