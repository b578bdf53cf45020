"""Texts that measurements name: prose, and of three domains a part to learn from and a part to measure on."""

import contextlib
import glob
import os

PROJECT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
DOMAINS = ("prose", "code", "documents")
SOURCES = {"code": "src/**/*.c", "documents": "docs/**/*.md"}  # of this project: alternate files are learned from
PROSE = "prose"  # the text of -f, which is what all pages score
LEARNED = " to learn"  # behind a domain's name: its other part
CHANGING = "prose and code by turns"
TURN = 14000  # characters of each


def make_texts(prose, folder):
    """{name: path}; what is made of the project's files is written to the folder. Where it lacks files, as a part of it that was carried to another machine
    may, their texts are left out, and what wants them says so."""
    os.makedirs(folder, exist_ok=True)
    texts = {PROSE: prose}
    learned = os.path.join(PROJECT, "data", "wiki.valid.raw")
    if os.path.exists(learned):
        texts[PROSE + LEARNED] = learned
    for domain, pattern in SOURCES.items():
        files = sorted(glob.glob(os.path.join(PROJECT, pattern), recursive=True))
        for name, part in ((domain, files[1::2]), (domain + LEARNED, files[::2])) if len(files) > 1 else ():
            texts[name] = os.path.join(folder, name.replace(" ", "-") + ".txt")
            with open(texts[name], "w", encoding="utf-8") as to:
                for path in part:
                    with open(path, encoding="utf-8") as file:
                        to.write(file.read())
    if "code" in texts:
        texts[CHANGING] = os.path.join(folder, "changing.txt")
        write_by_turns([texts[PROSE], texts["code"]], texts[CHANGING])
    return texts


def write_by_turns(paths, to):
    """Writes TURN characters of each text after another, as long as each has them."""
    with contextlib.ExitStack() as open_files:
        files = [open_files.enter_context(open(path, encoding="utf-8")) for path in paths]
        target = open_files.enter_context(open(to, "w", encoding="utf-8"))
        while True:
            parts = [file.read(TURN) for file in files]
            if any(len(part) < TURN for part in parts):
                return
            target.writelines(parts)
