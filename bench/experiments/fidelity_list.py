#!/usr/bin/env python3
"""Writes a list of keys and values, lines "amber acorn 12: 3456789" as bench/experiments/fidelity_needles.c has them, for a text in which nothing is
prose:

    fidelity_list.py SEED LINES > FILE"""

import json
import os
import random
import sys


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: fidelity_list.py SEED LINES > FILE")
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "fidelity_words.json"), encoding="utf-8") as file:
        words = json.load(file)
    draw = random.Random(int(sys.argv[1]))
    for _ in range(int(sys.argv[2])):
        print(f"{draw.choice(words['adjectives'])} {draw.choice(words['nouns'])} {draw.randrange(100):02d}: {draw.randrange(10**6, 10**7)}")


if __name__ == "__main__":
    main()
