"""A text with eight planted facts, and the questions about them that quality.py asks.

The facts are invented, so that no model knows them. A question is the beginning of a planted sentence, which the model completes: base models
and chat models can do that alike, and one of 135 million parameters finds all eight with an f16 cache, so that what is missed is the cache's fault."""

import re

# A sentence of the text is beginning, blank, answer and a full stop; its beginning is what is asked.
FACTS = (
    ("The old lighthouse on Varnick Island was built in", "1743"),
    ("The painter Osman Kell lived in the town of", "Dunmorrow"),
    ("The secret ingredient of Marla's soup is", "ginger"),
    ("The ship Grey Heron was commanded by Captain", "Ludlow"),
    ("The cheese fair of Brackwell takes place in", "October"),
    ("The number of the locker at Pell Station is", "5821"),
    ("The parrot of the innkeeper Tobias is called", "Bixby"),
    ("The river Tessin flows into Lake", "Orvane"),
)
CHARACTERS = 4.15  # of English text for a token of the models' tokenizers
REPLY_TOKENS = 12


def tidy(text):
    """The paragraphs of a text of the WikiText data set, without its spaces around punctuation; those with <unk> are left out."""
    paragraphs = []
    for line in text.split("\n"):
        line = re.sub(r" @([-,.])@ ", r"\1", line.strip())
        line = re.sub(r" ([,.;:?!)\]]|'s\b)", r"\1", line)
        line = re.sub(r"([(\[]) ", r"\1", line)
        line = re.sub(r'" ([^"]*) "', r'"\1"', line)
        if line and not line.startswith("=") and "<unk>" not in line:
            paragraphs.append(line)
    return paragraphs


def planted(text, tokens):
    """The beginning of `text`, about so many tokens, with a fact at the end of a sentence in the first half of each eighth, so that all of
    them are older than the newest tokens, which methods keep exact."""
    whole, size = "\n\n".join(tidy(text)), int(tokens * CHARACTERS)
    if len(whole) < size + 4096:
        raise ValueError(f"{len(whole):,} characters without headings and <unk> are too few for questions on {tokens:,} tokens")
    parts, at = [], 0
    for i, (beginning, answer) in enumerate(FACTS):
        end = whole.index(". ", max(at, int(size * (i + 0.25) / len(FACTS)))) + 2
        parts += [whole[at:end], f"{beginning} {answer}. "]
        at = end
    parts.append(whole[at : whole.index(". ", max(at, size)) + 1])
    return "".join(parts) + "\n"


def is_right(answer, reply):
    return re.search(rf"\b{re.escape(answer)}\b", reply) is not None
