"""The methods that real_models.py measures and real_models_report.py prints, in the page's order.

A method is written NAME or, of terse-N with a profile of the model, NAME:profile; terse-N alone is as a user has it who has learned nothing.
Those that drop or skip tokens keep or read a fixed number of them, so that their bits are of 8,192 tokens."""

METHODS = (
    "f16",
    "q8_0",
    "q4_0",
    "kivi-4",
    "kivi-2",
    "terse-4",
    "terse-3",
    "terse-2",
    "terse-1",
    "terse-4:profile",
    "terse-2:profile",
    "million-4",
    "million-2",
    "cq-2",
    "antkv-2",
    "antkv-1",
    "commvq-2",
    "commvq-1",
    "selfindex-2",
    "quest-512",
    "snapkv-1024",
    "mat-1024",
    "streaming-1024",
)
LEARNERS = ("million", "cq", "antkv", "commvq")


def codebook_of(method):
    """The name of the codebook that a method needs; None where it needs none. Every terse-N has the same, its profile."""
    name, *options = method.split(":")
    family = name.split("-")[0]
    if family == "terse":
        return "terse" if "profile" in options else None
    return name if family in LEARNERS else None


def arguments_of(method, codebook):
    """The options of the command for a method, where `codebook` is the path of the file that it needs."""
    name = method.split(":")[0]
    without = ["--codebook", "none"] if name.startswith("terse") else []
    return ["--kv", name, *(["--codebook", codebook] if codebook else without)]
