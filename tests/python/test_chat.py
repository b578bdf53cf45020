"""Conversations: replies beside the command's, and that what a session holds of a conversation is not read again."""
import os
import tempfile
import unittest

import support

support.need("numpy")
import numpy as np
import terse

DOCUMENT = "%s\nThe access code for the merry lantern is 4071826.\n%s"
QUESTION = "What is the access code for the merry lantern?"
ANSWER = "The access code for the merry lantern is 4071826."


def user(text):
    return {"role": "user", "content": text}


def document():
    text = support.article()
    return DOCUMENT % (text[:700], text[2000:2500])


class Chats(unittest.TestCase):
    def setUp(self):
        self.model = support.model()

    def test_a_reply_is_the_commands(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "document.txt")
            with open(path, "w", encoding="utf-8") as file:
                file.write(document())
            written = support.command("run", "--chat", "-f", path, "-p", QUESTION, "--temp", "0", "--kv", "q8_0", "-t", str(support.THREADS))
        session = self.model.session("q8_0")
        self.assertEqual(session.chat([user(document() + "\n\n" + QUESTION)], temperature=0), written)
        self.assertEqual((written, session.finish_reason), (ANSWER, "stop"))

    def test_a_stream(self):
        messages = [user(document() + "\n\n" + QUESTION)]
        session = self.model.session("q8_0")
        pieces = list(session.chat(messages, temperature=0, stream=True))
        self.assertEqual("".join(pieces), ANSWER)
        self.assertGreater(len(pieces), 4)
        self.assertEqual(session.messages, [*messages, {"role": "assistant", "content": ANSWER}])

    def test_a_turn_reads_what_is_new(self):
        session = self.model.session("f16")
        messages = [user(document() + "\n\n" + QUESTION)]
        reply = session.chat(messages, temperature=0)
        messages += [{"role": "assistant", "content": reply}, user("And again?")]
        read = session.counters().prefill_tokens
        second = session.chat(messages, max_tokens=8, temperature=0)
        self.assertEqual(session.counters().prefill_tokens - read, len(self.model.chat_tokens(messages, after=2)))
        anew = self.model.session("f16")
        self.assertEqual(anew.chat(messages, max_tokens=8, temperature=0), second)
        self.assertEqual(len(anew), len(session))

    def test_another_conversation_is_read_anew(self):
        session = self.model.session("f16")
        session.chat([user("Tell me about rivers.")], max_tokens=4, temperature=0)
        messages = [user(document() + "\n\n" + QUESTION)]
        self.assertEqual(session.chat(messages, temperature=0), ANSWER)

    def test_a_document_is_read_once_for_many_questions(self):
        session = self.model.session("f16")
        system = {"role": "system", "content": document()}
        session.prefill([system])
        conversation = [system, user(QUESTION)]
        fork = session.fork()
        reply = fork.chat(conversation, max_tokens=12, temperature=0)
        self.assertEqual(fork.counters().prefill_tokens, len(self.model.chat_tokens(conversation)) - len(session))
        whole = self.model.session("f16")
        self.assertEqual(whole.chat(conversation, max_tokens=12, temperature=0), reply)
        self.assertEqual(session.messages, [system])
        self.assertLess(len(session), len(fork))

    def test_the_assistants_last_message_goes_on(self):
        question = user(document() + "\n\n" + QUESTION)
        begun = {"role": "assistant", "content": "The access code for the merry"}
        session = self.model.session("f16")
        self.assertEqual(session.chat([question, begun], temperature=0), " lantern is 4071826.")
        self.assertEqual(session.messages[-1]["content"], ANSWER)

    def test_a_saved_conversation_goes_on(self):
        messages = [user(document() + "\n\n" + QUESTION)]
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "state")
            session = self.model.session("q8_0")
            session.chat(messages, temperature=0)
            session.save(path)
            loaded = self.model.load(path)
            following = [*session.messages, user("And again?")]
            with self.assertRaisesRegex(ValueError, "not a conversation"):
                loaded.chat(following)
            loaded.messages = session.messages
            self.assertEqual(loaded.chat(following, max_tokens=6, temperature=0), session.chat(following, max_tokens=6, temperature=0))
            self.assertLess(loaded.counters().prefill_tokens, 100)

    def test_a_turn_that_is_interrupted(self):
        """While a message is read, the conversation stays as it was; where an interrupt comes when it is read, the session holds it."""
        first, whole = [user(document())], [user(document()), {"role": "assistant", "content": "Yes."}, user(document())]
        for last, held in (False, first), (True, whole):
            with self.subTest(last=last):
                session = self.model.session("f16")
                session.prefill(first)
                length = len(session)

                def interrupt(part):
                    if (part == 1) == last:
                        raise KeyboardInterrupt

                with self.assertRaises(KeyboardInterrupt):
                    session.prefill(whole, progress=interrupt)
                self.assertEqual((session.messages, len(session) > length), (held, last))
                self.assertEqual(session.chat([*whole, {"role": "assistant", "content": ""}, user(QUESTION)], temperature=0, max_tokens=30), ANSWER)

    def test_text_beside_a_conversation_ends_it(self):
        session = self.model.session("f16")
        session.chat([user("Hello")], max_tokens=2, temperature=0)
        session.decode([5])
        with self.assertRaisesRegex(ValueError, "not a conversation"):
            session.chat([user("Hello"), user("again")])

    def test_a_conversation_as_text_and_tokens(self):
        messages = [user("Hello <|im_end|>")]
        for format in "chatml", "llama-3":
            text = self.model.chat_text(messages, format=format)
            self.assertIn("Hello <|im_end|>", text)
        tokens = self.model.chat_tokens(messages)
        self.assertEqual(tokens.dtype, np.int32)
        self.assertIn("chatml", terse.chat_formats())
        with self.assertRaises(terse.ArgumentError):
            self.model.chat_tokens(messages, format="smoke signals")


class Batches(unittest.TestCase):
    def setUp(self):
        self.model = support.model()

    def test_texts_are_those_alone(self):
        prompts = [support.PROSE[:30], support.article()[:900], support.PROSE]
        alone = [self.model.session("q8_0").generate(prompt, max_tokens=10, temperature=0.9, seed=4) for prompt in prompts]
        self.assertEqual(self.model.generate_batch(prompts, kv="q8_0", max_tokens=10, temperature=0.9, seed=4), alone)

    def test_conversations_end_by_themselves(self):
        messages = [user(document() + "\n\n" + QUESTION)]
        self.assertEqual(self.model.generate_batch([messages, messages], kv="q8_0", temperature=0), [ANSWER, ANSWER])

    def test_stop_and_a_full_context(self):
        whole = self.model.session("f16").generate(support.PROSE, max_tokens=16, temperature=0)
        n = len(self.model.tokenize(support.PROSE))
        alone = self.model.session("f16", context=n + 16)
        self.assertEqual(self.model.generate_batch([support.PROSE], kv="f16", context=n + 16, temperature=0), [alone.generate(support.PROSE, temperature=0)])
        self.assertEqual(self.model.generate_batch([support.PROSE], kv="f16", max_tokens=16, temperature=0, stop=whole[9:14]), [whole[:9]])

    def test_a_step_is_what_each_session_alone_takes(self):
        tokens = self.model.tokenize(support.PROSE)
        pairs = []
        for kv in "f16", "terse-2":
            session = self.model.session(kv)
            session.prefill(tokens)
            pairs.append((session, session.fork()))
        self.model.step({pairs[0][0]: [7], pairs[1][0]: [9, 10]})
        pairs[0][1].decode([7])
        pairs[1][1].decode([9, 10])
        for together, alone in pairs:
            np.testing.assert_array_equal(together.logits(), alone.logits())

    def test_a_step_that_fails_changes_nothing(self):
        sessions = [self.model.session("f16") for _ in range(2)]
        for session in sessions:
            session.prefill([1, 2, 3])
        with self.assertRaisesRegex(terse.ArgumentError, "2"):
            self.model.step({sessions[0]: [5], sessions[1]: [10**6]})
        self.assertEqual([len(session) for session in sessions], [3, 3])


if __name__ == "__main__":
    support.main()
