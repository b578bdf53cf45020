"""Reads from a saved state (docs/state-format.md) on which tokens of a prompt its anchors lie."""

import struct

CACHE, EXACT, ANCHORS = 4, 6, 9  # sections
EARLY = 64  # tokens that count as the beginning
COMMON = 4  # an anchor is common where the token is one in a fourth of all heads


def sections_of(data):
    return {number: (offset, size) for number, _, offset, size, _ in struct.iter_unpack("<IIQQQ", data[64:704])}


def anchors_of(path):
    """For each layer and KV head, in the order of layers [early of keys, of values, common of keys, of values]: shares of its anchors that lie on the
    first tokens, and on tokens that are anchors in many other heads. Heads are not told from layers: that is the reader's."""
    with open(path, "rb") as file:
        data = file.read()
    at = sections_of(data)
    exact, _, _, length, _, _, n, _ = struct.unpack_from("<8Q", data, at[CACHE][0])
    begin, size = at[ANCHORS]
    if not n or not exact:
        raise ValueError("the state has no anchors, or no exact first tokens, which tell how wide heads are")
    rows = at[EXACT][1] // exact  # bytes of a row of all heads and sides
    sides = (size - n * rows) // (4 * n)
    step = size // sides
    lists = [struct.unpack_from(f"<{n}I", data, begin + i * step) for i in range(sides)]
    of_side = {}
    for side in range(2):
        counts = {}
        for tokens in lists[side::2]:
            for token in tokens:
                counts[token] = counts.get(token, 0) + 1
        of_side[side] = counts
    share = lambda tokens, good: sum(map(good, tokens)) / len(tokens)  # noqa: E731
    result = []
    for keys, values in zip(lists[::2], lists[1::2]):
        row = [share(tokens, lambda t: t < EARLY) for tokens in (keys, values)]
        for side, tokens in enumerate((keys, values)):
            row.append(share(tokens, lambda t: of_side[side][t] * COMMON >= sides // 2))
        result.append([round(x, 4) for x in row])
    distinct = [len(of_side[side]) for side in range(2)]
    return {"tokens": length, "of_each": n, "distinct": distinct, "heads": result}
