"""docs/reports/fidelity.md: every method at every rate in two protocols: as a cache is used, and as the papers measure perplexity, where every token reads
codes; codes of fewer and of more bits; methods that choose the tokens that a step reads, and how many of the best tokens their indexes find."""

import page_anchors
from page_common import perplexity
from page_real_models import SIZE, arguments_of, book_of
from quality_measurements import Measurement, learned
from quality_texts import PROSE

# In groups, each with its rates from many bits to few. Names are those of page_real_models.
FAMILIES = (
    ("f16", "q8_0", "q4_0", "kivi-4", "kivi-2"),
    ("terse-4", "terse-3", "terse-2", "terse-1", "terse-0.5"),
    tuple(f"terse-{n}:profile" for n in ("4", "3", "2", "1", "0.5")),
    tuple(f"cq-{n}" for n in ("4", "2", "1", "0.75", "0.375")),
    tuple(f"antkv-{n}" for n in ("4", "2", "1", "0.75", "0.375")),
    ("million-4", "million-3", "million-2"),
    ("commvq-2", "commvq-1"),
)
METHODS = tuple(method for family in FAMILIES for method in family)

# In the papers' protocol: codes of 4, 2 and 1 bits, and the two rates of other numbers that the papers make most of. Of these on a GPU all but antkv's.
PAPER = ("q4_0", "kivi-4", "kivi-2", "terse-4:profile", "terse-2:profile", "terse-1:profile", "cq-4", "cq-2", "cq-1")
PAPER += ("antkv-4", "antkv-2", "antkv-1", "antkv-0.375", "million-4", "million-3", "million-2", "commvq-2", "commvq-1")

PARTS = 32  # of a row, each with a code of so many bits:
BITS_PER_CODE = (4, 6, 8, 10)

CHOOSE = 512  # tokens of a prompt that a step reads, or that are kept
EXACT = 64  # of them by Self-Indexing, which ranks them by attention
# (label, what a step reads of the prompt, method, arguments, the method that reads all of the same cache)
CHOICES = (
    ("selfindex-2", "7.5 % and 64", "selfindex-2", (), "selfindex-2, whole"),
    ("selfindex-2, no exact tokens", "7.5 %", "selfindex-2", ("--anchors", "0%"), None),
    ("selfindex-2 of 512", "448 and 64", "selfindex-2", ("--top-k-tokens", str(CHOOSE - EXACT)), "selfindex-2, whole"),
    ("selfindex-2, whole", "all", "selfindex-2", ("--top-k-tokens", "100%"), None),
    ("selfindex-16", "7.5 % and 64", "selfindex-16", (), "f16"),
    ("selfindex-16 of 512", "448 and 64", "selfindex-16", ("--top-k-tokens", str(CHOOSE - EXACT)), "f16"),
    ("quest-512", "512", f"quest-{CHOOSE}", (), "f16"),
    ("quest, 7.5 %", "7.5 %", f"quest-{CHOOSE}", ("--top-k-tokens", "7.5%"), "f16"),
    ("snapkv-512", "512, the others are dropped", f"snapkv-{CHOOSE}", (), "f16"),
    ("kivi-2 by its signs", "7.5 % and 64", "kivi-2", ("--top-k-tokens", "7.5%", "--anchors", str(EXACT)), "kivi-2"),
    ("q4_0 by its signs", "7.5 %", "q4_0", ("--top-k-tokens", "7.5%"), "q4_0"),
    ("million-4 by its signs", "7.5 %", "million-4", ("--top-k-tokens", "7.5%"), "million-4"),
    ("commvq-2 by its signs", "7.5 %", "commvq-2", ("--top-k-tokens", "7.5%"), "commvq-2"),
)


def of(model, method, options, more=()):
    return perplexity(model, (*arguments_of(method), *more), options, SIZE, book_of(method, options))


def paper_of(model, method, options):
    """The page of anchors names them, and measures some of the same rows."""
    if method == "antkv-1":
        return page_anchors.of(model, method, page_anchors.anchors(1), options, True)
    if method == "kivi-2":
        return page_anchors.of(model, method, page_anchors.NONE, options, True)
    return of(model, method, options, ("--paper",))


def parts_of(bits):
    return f"million-{PARTS}x{bits}"


def choice_of(model, label, options):
    """The measurement of a row of CHOICES, or of a method by its name alone."""
    method, arguments = next(((row[2], row[3]) for row in CHOICES if row[0] == label), (label, ()))
    return of(model, method, options, arguments)


def recall_of(model, options):
    return Measurement("recall", model, (), None, PROSE, (options.context or SIZE[0], options.chunks or SIZE[1]))


def books(model, options):
    names = (*METHODS, *(parts_of(bits) for bits in BITS_PER_CODE))
    return list(dict.fromkeys(learned(model, book_of(name, options)) for name in names if book_of(name, options)))


def measurements(options):
    found = [m for model in options.model_names for m in books(model, options)]  # take longest
    for model in options.model_names:
        found += [of(model, method, options) for method in METHODS]
        found += [paper_of(model, method, options) for method in PAPER]
        found += [of(model, parts_of(bits), options) for bits in BITS_PER_CODE]
        found += [choice_of(model, row[0], options) for row in CHOICES]
        found.append(recall_of(model, options))
    return found
