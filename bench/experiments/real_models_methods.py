"""The methods that real_models.py measures and real_models_report.py prints, in the page's order.

A method is written as in fidelity's work folders, NAME or NAME:codebook=none. Those that drop or skip tokens keep or read a fixed number of
them, so that their bits are of 8,192 tokens."""

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
    "terse-4:codebook=none",
    "terse-3:codebook=none",
    "terse-2:codebook=none",
    "terse-1:codebook=none",
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
LEARNERS = ("terse", "million", "cq", "antkv", "commvq")


def codebook_of(method):
    """The name of the codebook that a method needs; None where it needs none. Every terse-N has the same, its profile."""
    name, *options = method.split(":")
    family = name.split("-")[0]
    if family not in LEARNERS or "codebook=none" in options:
        return None
    return "terse" if family == "terse" else name


def arguments_of(method, codebook):
    """The options of the command for a method, where `codebook` is the path of the file that it needs."""
    name, *options = method.split(":")
    arguments = ["--kv", name]
    if codebook:
        arguments += ["--codebook", codebook]
    elif "codebook=none" in options:
        arguments += ["--codebook", "none"]
    return arguments
