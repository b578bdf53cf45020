"""Tasks on long texts that tell methods of the KV cache apart where single needles no longer do, after RULER (Hsieh et al. 2024) and SCBench
(Li et al. 2024). long_tasks.py runs them; nothing here needs a model but the number of tokens of a text.

Everything follows from the text, the length and a number. For each number there are three contexts:

text      a part of the text with facts between its sentences; each of these kinds asks about it in a conversation of its own
  keys       the access code of one of 16 things
  values     both ticket numbers of a thing, beside those of another
  queries    the access codes of three things at once
  variables  the variables to which one is copied, one after another (RULER's variable tracking), beside a second chain
  sum        the sum of three numbers of the text, step by step
  json       the access codes of three things as a JSON object; whether it is JSON, and whether it is the right one
  turns      four access codes, one a turn, in one conversation (SCBench: what is chosen for the first question must serve the next)
common    a list of words, of which three are far more common than all others: one of these three, at least
frequent  a list of invented words whose frequencies fall by Zipf's law: two of the three most frequent ones, at least

Before a text stands an example, as earlier turns, of the forms of answers; small models do not understand the questions otherwise. Before all stands a
system message with the number: what two numbers have in common is then shorter than a page, so that a server's kept prefix is of the whole context.

A conversation is {"kind", "length", "number", "before", "context", "turns"}, before being the example's messages; a turn is {"question", "tokens",
"solution", "answer"}, tokens being the most that a reply may have and solution a right reply. An answer is {"all": texts that must stand in the reply,
"least": how many of them, without it all, "none": texts that must not} or {"last": number} or {"json": object}."""

import collections
import json
import os
import random
import re

from planted_facts import CHARACTERS, tidy

TEXT_KINDS = ("keys", "values", "queries", "variables", "sum", "json", "turns")
KINDS = (*TEXT_KINDS, "common", "frequent")
RESERVED = 640  # tokens of the length that are left to the chat's format, questions and replies
THINGS, QUERIES, VALUES, VARIABLES, BOXES, TURNS, TOP = 16, 3, 2, 3, 3, 4, 3
SHARE = 0.15  # of a list of words that each of the common ones has
NEAR = 0.9  # of its room that a context has at least

HERE = os.path.dirname(os.path.abspath(__file__))


def sentences_of(text):
    """The sentences of the text, each with the white space behind it."""
    found = []
    for paragraph in tidy(text):
        parts = re.split(r"(?<=[.!?]) +(?=[A-Z])", paragraph)
        found += [part + " " for part in parts[:-1]] + [parts[-1] + "\n\n"]
    return found


def digits(dice, n):
    return str(dice.randrange(10 ** (n - 1), 10**n))


def code_of(item):
    return "The access code for the {} is {}.".format(*item)


def listed(names):
    names = [f"the {name}" for name in names]
    return ", ".join(names[:-1]) + f" and {names[-1]}"


def lines(sentences):
    return "\n".join(sentences)


def turn(question, tokens, solution, **answer):
    return {"question": question, "tokens": tokens, "solution": solution, "answer": answer}


class Maker:
    """Makes conversations of a text; `count` says how many tokens a text has."""

    def __init__(self, text, count):
        self.sentences, self.count = sentences_of(text), count
        self.words = sorted({word for word in re.findall(r"\b[a-z]{5,10}\b(?! ?['’])", text) if len(set(word)) > 2})
        with open(os.path.join(HERE, "long_tasks_words.json"), encoding="utf-8") as file:
            lists = json.load(file)
        self.nouns, self.adjectives = lists["nouns"], lists["adjectives"]
        self.names = sorted(f"{adjective} {noun}" for adjective in self.adjectives for noun in self.nouns)
        if len(self.sentences) < 50 or len(self.words) < 500:
            raise ValueError(f"the text has {len(self.sentences)} sentences and {len(self.words)} words: give one with 50 and 500 or more")

    def fill(self, wanted, build):
        """What build(characters) makes when its context has so many tokens; the same build is called several times."""
        characters = wanted * CHARACTERS
        for _ in range(12):
            made = build(int(max(characters, 1)))
            tokens = self.count(made[0])
            if NEAR * wanted <= tokens <= wanted:
                return made
            characters *= (1 + NEAR) / 2 * wanted / tokens
        raise ValueError(f"a context of {wanted:,} tokens is too short for what is asked about it, or longer than the text")

    # ---- The text with facts

    # Each of these returns chains of facts, whose facts keep their order in the text, and the turns of its kinds. Without `others` there is nothing beside
    # what is asked.

    def codes(self, dice, others):
        code = {name: digits(dice, 7) for name in dice.sample(self.names, THINGS if others else TURNS)}

        def asked(n):
            return {name: code[name] for name in dice.sample(list(code), n)}

        def ask_one(name, number):
            return turn(f"What is the access code for the {name}? Answer with the number alone.", 24, number, all=[number], none=[])

        some, keys = asked(QUERIES), asked(QUERIES)
        quoted = ", ".join(f'"{name}"' for name in keys)
        return [[fact] for fact in map(code_of, code.items())], {
            "keys": [ask_one(*one) for one in asked(1).items()],
            "turns": [ask_one(*one) for one in asked(TURNS).items()],
            "queries": [turn("The text has sentences of the form: The access code for the ... is ... . Copy those for "
                             f"{listed(some)}, one below the other.", 120, lines(map(code_of, some.items())), all=list(some.values()), none=[])],
            "json": [turn(f"Write a JSON object with the keys {quoted}. The value of each is its access code, a number. Answer with the JSON object alone.",
                          160, json.dumps({name: int(number) for name, number in keys.items()}), json=keys)]}

    def tickets(self, dice, others):
        names = dice.sample(self.names, 1 + others)
        numbers = [[digits(dice, 5) for _ in range(VALUES)] for _ in names]
        facts = [[f"A ticket number of the {name} is {number}." for number in own] for name, own in zip(names, numbers)]
        question = (f"The text gives {VALUES} ticket numbers of the {names[0]}. Answer with a numbered list of the sentences that give them. "
                    f"Each begins with: A ticket number of the {names[0]} is")
        solution = lines(f"{i}. {fact}" for i, fact in enumerate(facts[0], 1))
        return [[fact] for own in facts for fact in own], {"values": [turn(question, 90, solution, all=numbers[0], none=sum(numbers[1:], []))]}

    def copies(self, dice, others):
        names = dice.sample(self.nouns, VARIABLES * (1 + others))
        chains = []
        for i in range(0, len(names), VARIABLES):
            own = names[i : i + VARIABLES]
            chains.append([f"Variable {own[0]} is {digits(dice, 5)}."] + [f"Variable {x} is copied to variable {y}." for x, y in zip(own, own[1:])])
        question = (f"{chains[0][0]} It is copied from variable to variable. Write {VARIABLES - 1} sentences of the text: first that which says to which "
                    f"variable {names[0]} is copied, then that which says to which variable that one is copied.")
        return chains, {"variables": [turn(question, 120, lines(chains[0][1:]), all=names[1:VARIABLES], none=names[VARIABLES:])]}

    def coins(self, dice, _others):
        boxes, total, solution = {name: dice.randrange(2, 16) for name in dice.sample(self.adjectives, BOXES)}, 0, []
        for name, n in boxes.items():
            solution.append(f"The {name} box holds {n} coins: {total} + {n} = {total + n}")
            total += n
        question = (f"How many coins do {listed([name + ' box' for name in boxes])} hold together? Write a line for each in the form: The ... box holds X "
                    "coins: S + X = T, where S is the sum so far, 0 at first. End with Answer: and the sum.")
        return [[f"The {name} box holds {n} coins."] for name, n in boxes.items()], {
            "sum": [turn(question, 160, lines([*solution, f"Answer: {total}"]), last=total)]}

    def facts(self, dice, others=True):
        chains, turns = [], {}
        for kinds in (self.codes, self.tickets, self.copies, self.coins):
            more, asked = kinds(dice, others)
            chains += more
            turns.update(asked)
        return chains, turns

    def text_example(self):
        """Earlier turns about a text of nothing but facts."""
        dice = random.Random("example")
        chains, turns = self.facts(dice, False)
        dice.shuffle(chains)
        return " ".join(fact for chain in chains for fact in chain), [turns[kind][0] for kind in ("keys", "values", "variables", "sum")]

    def text_with_facts(self, name, characters):
        dice = random.Random(name)
        chains, turns = self.facts(dice)
        at, size, used = dice.randrange(len(self.sentences)), sum(len(fact) + 1 for chain in chains for fact in chain), []
        while size < characters:
            if len(used) >= len(self.sentences):
                raise ValueError(f"{len(self.sentences):,} sentences are too few for a context of {characters:,} characters")
            used.append(self.sentences[(at + len(used)) % len(self.sentences)])
            size += len(used[-1])
        first, last = 1, int(len(used) * 0.95)
        if last < 8:
            raise ValueError(f"a context of {characters:,} characters has no room for the facts that are asked about: use a longer one")
        planted = collections.defaultdict(list)  # by the sentence that they stand before; none is among the newest tokens, which methods keep exact
        for chain in chains:
            for place, fact in zip(sorted(dice.randrange(first, last) for _ in chain), chain):
                planted[place].append(fact)
        return "".join("".join(f"{fact} " for fact in planted[i]) + sentence for i, sentence in enumerate(used)).strip(), turns

    # ---- Lists of words

    def common_words(self, name, characters):
        dice = random.Random(name)
        words = dice.sample(self.words, len(self.words))
        common, rest = words[:TOP], words[TOP:]
        entries = int(characters / 8)
        each = max(int(entries * SHARE), 4)
        shuffled = [word for word in common for _ in range(each)] + [rest[i % len(rest)] for i in range(entries - TOP * each)]
        return word_list("words", dice, shuffled, common, 1)

    def frequent_words(self, name, characters):
        dice = random.Random(name)
        coined = set()
        while len(coined) < 500:
            coined.add("".join(dice.choice("bdfgklmnprstvz") + dice.choice("aeiou") for _ in range(3)))
        words, entries = dice.sample(sorted(coined), len(coined)), int(characters / 8)
        harmonic = sum(1 / rank**2 for rank in range(1, len(words) + 1))
        counts = [max(round(entries / rank**2 / harmonic), 1) for rank in range(1, len(words) + 1)]
        shuffled = [word for word, n in zip(words, counts) for _ in range(n)][:entries]
        return word_list("invented words", dice, shuffled, words[:TOP], 2)

    # ---- Conversations

    def make(self, length, number, kinds=KINDS):
        """The conversations of these kinds; those of TEXT_KINDS share a context."""
        made = []
        builders = {"common": self.common_words, "frequent": self.frequent_words}
        groups = [(self.text_with_facts, "text", dialogue(*self.text_example()), [kind for kind in kinds if kind in TEXT_KINDS])]
        groups += [(build, kind, [], [kind]) for kind, build in builders.items() if kind in kinds]
        for build, name, example, of_group in groups:
            if not of_group:
                continue
            before = [{"role": "system", "content": f"{number} is the number of the {name}. You answer questions about it."}, *example]
            room = length - RESERVED - self.count(lines(message["content"] for message in before))
            context, turns = self.fill(room, lambda size, build=build, name=name: build(f"{name} {length} {number}", size))
            for kind in of_group:
                own = turns[kind] if name == "text" else turns
                made.append({"kind": kind, "length": length, "number": number, "before": before, "context": context, "turns": own})
        return made


def word_list(what, dice, words, top, least):
    """A shuffled list of words as a context, and the turn that asks for the most frequent ones."""
    dice.shuffle(words)
    question = f"Which {TOP} {what} are the most frequent ones in this list? Answer with the {TOP} words alone."
    return f"A list of {what}: " + ", ".join(words) + ".", [turn(question, 40, ", ".join(top), all=top, least=least, none=[])]


def dialogue(context, turns):
    """The messages of an example, with its solutions."""
    messages = []
    for own in turns:
        question = own["question"] if messages else f"{context}\n\n{own['question']}"
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": own["solution"]}]
    return messages


# ---- Replies


def json_in(reply):
    """The object that the reply is, with or without a fence around it; None: it is not JSON."""
    fenced = re.search(r"```(?:json)?\s*(.*?)\s*```", reply, re.S)
    try:
        found = json.loads(fenced.group(1) if fenced else reply)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def judge(answer, reply):
    """Returns whether the reply is right, and for JSON whether it is an object at all, else None."""
    if "json" in answer:
        found = json_in(reply)
        right = found is not None and {key: str(value) for key, value in found.items()} == answer["json"]
        return right, found is not None
    if "last" in answer:
        numbers = re.findall(r"-?\d+", re.split(r"[Aa]nswer", reply)[-1].replace(",", ""))
        return bool(numbers) and int(numbers[-1]) == answer["last"], None

    def stands(text):
        return re.search(rf"(?<!\w){re.escape(text)}(?!\w)", reply, re.I) is not None

    found = sum(map(stands, answer["all"]))
    return found >= answer.get("least", len(answer["all"])) and not any(map(stands, answer["none"])), None
