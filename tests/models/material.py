"""The questions and texts for the public models: make_reference.py gives them to other software, and test_models.py gives the same to terse."""
import hashlib
import os
import struct

HERE = os.path.dirname(os.path.abspath(__file__))
PROJECT = os.path.dirname(os.path.dirname(HERE))
TEXT = os.path.join(PROJECT, "data", "wiki.valid.raw")

PERPLEXITY_CONTEXT = 2048  # one window, of which the second half is scored
LOGITS_CONTEXT = 130  # one window, of which positions 65 to 128 are looked at: 64 tokens
BLOCK = 4096  # tokens that share a checksum, which says where a difference is

CONVERSATIONS = [
    [("user", "Hello, who are you?")],
    [("system", "Be brief."), ("user", "Hello")],
    [("system", ""), ("user", "Hello")],
    [("user", " 1 + 1? \n"), ("assistant", "2"), ("user", "And\n\ttwice\u00a0that? \U0001f642")],
    [("system", " You are a poet. "), ("user", "One line."), ("assistant", " Roses are red.\n"), ("user", "Encore \u00e9t\u00e9\n")],
]

# Asked about one article of data/demo.txt, with what a right reply has.
SYSTEM = "You are a helpful assistant. Answer in one short sentence."
QUESTIONS = [
    ("In which year was the first motorized ascent of Mount Elbert?", "1949"),
    ("What is the name of the most difficult of the main routes?", "Black Cloud"),
    ("What vehicle was driven to the summit in 1949?", "Jeep"),
]
REPLY_TOKENS = 32  # at most; that of a base model ends with its line


def article():
    with open(os.path.join(PROJECT, "data", "demo.txt"), encoding="utf-8") as file:
        text = file.read()
    return text[text.index("# Mount Elbert") : text.index("# High Five Interchange")].rstrip("\n")


def question_prompt(question, chats):
    """The user's message, or the text that a base model continues."""
    return article() + "\n\n" + (question if chats else "Question: " + question + "\nAnswer:")


def read_text():
    with open(TEXT, encoding="utf-8", newline="") as file:
        return file.read()


def block_sums(tokens):
    """A checksum for each BLOCK of tokens."""
    blocks = [tokens[at : at + BLOCK] for at in range(0, len(tokens), BLOCK)]
    return [hashlib.sha256(struct.pack("<%di" % len(block), *block)).hexdigest()[:16] for block in blocks]
