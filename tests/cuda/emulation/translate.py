#!/usr/bin/env python3
"""translate.py IN.cu OUT.cpp: what of CUDA C++ is not C++, in words that cuda_emulation.h knows: launches and shared memory."""
import re
import sys

source, target = sys.argv[1:]
text = open(source).read().replace("<< <", "<<<").replace(">> >(", ">>>(")


def bracketed(text, at):
    """The end of what the '<' at `at` opens."""
    depth = 0
    for i in range(at, len(text)):
        depth += {"<": 1, ">": -1}.get(text[i], 0)
        if depth == 0:
            return i + 1
    raise SystemExit(f"{source}: no end of what begins at {at}")


def kernel_before(text, end):
    """Returns where the kernel's name that ends at `end` begins: name or name<...>."""
    at = end
    while text[at - 1].isspace():
        at -= 1
    if text[at - 1] == ">":
        depth = 0
        while True:
            at -= 1
            depth += {">": 1, "<": -1}.get(text[at], 0)
            if depth == 0:
                break
    while re.match(r"[\w:]", text[at - 1]):
        at -= 1
    return at


# kernel<<<grid, block, bytes, stream>>>(arguments) -> emulated_launch(grid, block, bytes, stream).run(kernel, arguments)
while (at := text.find("<<<")) >= 0:
    end = text.index(">>>", at)
    begin = kernel_before(text, at)
    kernel, launch = text[begin:at], text[at + 3 : end]
    rest = text[end + 3 :]
    opening = rest.index("(")
    comma = "" if re.match(r"\(\s*\)", rest[opening:]) else ", "
    middle = rest[:opening]  # a line's end in a macro
    text = f"{text[:begin]}emulated_launch({launch}).run{middle}(EMULATED_KERNEL(({kernel})){comma}{rest[opening + 1:]}"

text = re.sub(
    r"extern\s+__shared__\s+(?:__align__\(\d+\)\s+)?([\w ]+?)\s+(\w+)\[\]\s*;",
    r"\1 *const \2 = (\1 *)emulated_shared_memory;",
    text,
)
text = re.sub(r"\b__shared__\s+(?:__align__\((\d+)\)\s+)?", r"static ", text)
open(target, "w").write(text)
