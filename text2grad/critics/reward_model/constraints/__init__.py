"""Decoding in which every span is a quote: what the reward model writes is always z, and its unmatched rate is 0.

A reward model copies spans from memory, and a few of them are nowhere in the response (paper, appendix L: 0.93 to
2.47 % of them). Here tokens that would leave the format, or the text that is judged, are taken out before each step::

    matcher = QuoteConstraint(tokenizer, "slf5k").matcher(response, max_new_tokens=350)
    position = matcher.start
    while not position.done:
        logits = logits.masked_fill(matcher.forbidden(position), float("-inf"))
        position = matcher.next(position, token)

What is written is one JSON object as ``render_feedback`` lays it out: a critique that is more than white space (where
the model writes one), then two lists of strings, each a substring of the judged text that is more than white space. It
is

- sound: the object parses, each span is exactly in the response (for code: inside one fenced block);
- complete: each such object can be written, in any tokenisation, with any JSON spelling of any character (``é`` or
  ``\\u00e9``), tokens that hold half a character or several parts of the format (``"], "``) included;
- free of loops: behind a quote that a list has more often than the response, the list ends;
- finite: the critique and the lists have a maximum, and where ``max_new_tokens`` is given (and enough for any
  feedback at all) the object is closed in time. ``Position.limited`` says so. After the closing brace only the end
  of the sequence may follow.

How: z is an automaton over bytes (:mod:`automaton`); the substrings of the response are one integer, a bit for each
place where the quote so far may end. The vocabulary is a trie of byte strings (:mod:`vocabulary`), walked along with
the automaton (:mod:`matcher`). States outside of spans do not depend on the response: their masks are computed once.

Why not a grammar library: in xgrammar 0.2.8 the substrings become one rule per suffix-automaton state, 0.4 s to
compile for 1000 characters. llguidance 1.9.1, whose grammars have substrings, accepted and refused the same 19 591
texts about 9 999 random responses, in about the same time per token. But it also accepts repetition, spells each
character in one way only, and cannot close the object before the tokens run out. In vLLM it has to do
(:mod:`text2grad.critics.quote_grammar`).
"""

from text2grad.critics.reward_model.constraints.matcher import Position, QuoteConstraint, QuoteMatcher

__all__ = ["Position", "QuoteConstraint", "QuoteMatcher"]
