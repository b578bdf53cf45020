"""Saving, restoring and erasing what slots have left, as llama-server's /slots/ID?action=... does."""
import os
import shutil
import tempfile
import threading
import unittest

from served import Server, ServedTest, answer, ask_about, document, main

CHAT = "/v1/chat/completions"
CODE = 8123377


class Slots(ServedTest):
    options = ("-np", "2")

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.slots = os.path.join(cls.folder.name, "slots")
        cls.options = ("-np", "2", "--slot-save-path", cls.slots)
        super().setUpClass()

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.folder.cleanup()

    def act(self, slot, action, server=None, **body):
        status, _, reply = (server or self.server).post("/slots/%s?action=%s" % (slot, action), body)
        self.assertEqual(status, 200, reply)
        return reply

    def turn(self, messages, server=None, **fields):
        status, _, reply = (server or self.server).post(CHAT, {"messages": messages, "max_tokens": 30, "temperature": 0, **fields})
        self.assertEqual(status, 200, reply)
        return reply["choices"][0]["message"], reply["usage"]

    def refused_action(self, status, param, address, body, contains, server=None):
        got, _, reply = (server or self.server).post(address, body)
        self.assertEqual((got, reply["error"]["param"]), (status, param), reply)
        self.assertIn(contains, reply["error"]["message"])

    def test_a_slot_survives_in_a_file(self):
        messages = ask_about(document(CODE, size=9000))
        reply, usage = self.turn(messages)
        self.assertEqual(reply["content"], answer(CODE))
        saved = self.act(0, "save", filename="a slot.bin")
        path = os.path.join(self.slots, "a slot.bin")
        self.assertEqual(set(saved), {"id_slot", "filename", "n_saved", "n_written", "timings"})
        self.assertEqual((saved["id_slot"], saved["filename"], saved["n_written"]), (0, "a slot.bin", os.path.getsize(path)))
        self.assertLessEqual(abs(saved["n_saved"] - usage["prompt_tokens"] - usage["completion_tokens"]), 1)
        self.assertGreater(saved["timings"]["save_ms"], 0)
        messages += [reply, {"role": "user", "content": "Say it again."}]
        held = self.turn(messages)
        self.assertGreater(held[1]["prompt_tokens_details"]["cached_tokens"], saved["n_saved"] - 2)

        other = Server("-np", "2", "--slot-save-path", self.slots)
        self.addCleanup(other.stop)
        restored = self.act(1, "restore", other, filename="a slot.bin")
        self.assertEqual(set(restored), {"id_slot", "filename", "n_restored", "n_read", "timings"})
        self.assertEqual((restored["n_restored"], restored["n_read"]), (saved["n_saved"], saved["n_written"]))
        self.assertGreater(restored["timings"]["restore_ms"], 0)
        again = self.act(1, "save", other, filename="again")
        self.assertEqual((again["n_saved"], again["n_written"]), (saved["n_saved"], saved["n_written"]))
        self.assertEqual(self.turn(messages, other), held)

        # Of the conversation nothing is left, of other sequences all.
        self.assertEqual(self.act(1, "restore", other, filename="again")["n_restored"], saved["n_saved"])
        erased = self.act(1, "erase", other)
        self.assertEqual(erased, {"id_slot": 1, "n_erased": saved["n_saved"]})
        self.assertEqual(self.act(1, "erase", other)["n_erased"], 0)
        self.refused_action(400, None, "/slots/1?action=save", {"filename": "x"}, "nothing to save", other)
        self.assertEqual(other.stop(), 0)

    def test_erasing_makes_the_next_prompt_new(self):
        messages = ask_about(document(CODE, size=9000, begin=2000))
        reply, _ = self.turn(messages)
        more = messages + [reply, {"role": "user", "content": "Say it again."}]
        self.assertGreater(self.turn(more, max_tokens=1)[1]["prompt_tokens_details"]["cached_tokens"], 1000)
        self.assertGreater(self.act(0, "erase")["n_erased"], 1000)
        self.assertEqual(self.turn(messages, max_tokens=1)[1]["prompt_tokens_details"]["cached_tokens"], 0)

    def test_replies_go_on_meanwhile(self):
        """Another slot is saved before a long reply ends; its own slot when it has ended."""
        self.turn(ask_about(document(CODE, size=3000)))
        begun, order = threading.Event(), []

        def write():
            for event in self.server.stream(CHAT, {"messages": [{"role": "user", "content": "Write."}], "max_tokens": 150, "logit_bias": self.no_end()}):
                begun.set()
            order.append("written")

        def save(slot):
            order.append(self.act(slot, "save", filename="slot %d" % slot)["id_slot"])

        self.turn([{"role": "user", "content": "x"}])  # slot 0 holds this
        writer = threading.Thread(target=write)
        writer.start()
        begun.wait()
        busy = [slot["id"] for slot in self.server.get("/slots")[2] if slot["is_processing"]]
        self.assertEqual(busy, [0])
        waits = threading.Thread(target=save, args=(0,))
        waits.start()
        status, _, _ = self.server.post("/slots/1?action=erase", b"")
        self.assertEqual((status, order), (200, []))
        writer.join()
        waits.join()
        self.assertEqual(sorted(order, key=str), [0, "written"])
        self.assertGreater(os.path.getsize(os.path.join(self.slots, "slot 0")), 0)

    def no_end(self):
        ends = [self.server.post("/tokenize", {"content": text})[2]["tokens"] for text in ("<|eot_id|>", "<|end_of_text|>")]
        return {str(tokens[0]): False for tokens in ends if len(tokens) == 1}

    def test_what_is_refused(self):
        name = {"filename": "x"}
        for slot in ("2", "-1", "x", "", "0/x", "99999999999"):
            self.refused_action(400, "id_slot", "/slots/%s?action=save" % slot, name, "0 to 1")
        for query in ("", "?action=", "?action=load", "?x=save"):
            self.refused_action(400, "action", "/slots/0" + query, name, "action=save")
        for bad in ("", ".", "..", ".hidden", "a/b", "../x", "/etc/passwd", "a\\b", "a\nb", 129 * "x", "0123456789abcdef-128.state"):
            for action in ("save", "restore"):
                self.refused_action(400, "filename", "/slots/0?action=" + action, {"filename": bad}, "filename")
        self.refused_action(400, "filename", "/slots/0?action=save", {}, "missing")
        self.refused_action(400, "filename", "/slots/0?action=save", {"filename": 5}, "string")
        self.refused_action(400, None, "/slots/0?action=save", [], "object")
        self.refused_action(400, None, "/slots/0?action=restore", {"filename": "no such file"}, "no file")
        self.assertEqual(self.server.get("/slots/0")[0], 405)
        for name, data in (("short", b"x"), ("empty", b"")):
            with open(os.path.join(self.slots, name), "wb") as file:
                file.write(data)
            self.assertEqual(self.server.post("/slots/0?action=restore", {"filename": name})[0], 400)
        os.mkdir(os.path.join(self.slots, "folder"))
        self.refused_action(400, None, "/slots/0?action=restore", {"filename": "folder"}, "no file")
        self.turn([{"role": "user", "content": "x"}])
        self.assertNotEqual(self.server.post("/slots/0?action=save", {"filename": "folder"})[0], 200)

    def test_a_file_of_another_method(self):
        self.turn(ask_about(document(CODE, size=3000)))
        self.act(0, "save", filename="default")
        server = Server("--kv", "f16", "--slot-save-path", self.slots)
        self.addCleanup(server.stop)
        self.refused_action(400, None, "/slots/0?action=restore", {"filename": "default"}, "another cache", server)
        self.assertEqual(server.stop(), 0)


class Folders(unittest.TestCase):
    def test_without_a_folder(self):
        server = Server()
        self.addCleanup(server.stop)
        status, _, reply = server.post("/slots/0?action=save", {"filename": "x"})
        self.assertEqual((status, reply["error"]["type"]), (501, "not_supported_error"))
        self.assertEqual(server.post("/slots/0?action=erase", b"")[2], {"id_slot": 0, "n_erased": 0})
        self.assertEqual(server.stop(), 0)

    def test_the_folder_of_states_serves_as_well(self):
        with tempfile.TemporaryDirectory() as folder:
            server = Server("--state-dir", folder)
            self.addCleanup(server.stop)
            server.chat("Hello", max_tokens=2)
            self.assertEqual(server.post("/slots/0?action=save", {"filename": "mine"})[0], 200)
            self.assertEqual((server.stop(), os.listdir(folder)), (0, ["mine"]))
            server = Server("--state-dir", folder)  # which leaves it alone
            self.assertEqual((server.stop(), os.listdir(folder)), (0, ["mine"]))
            self.assertNotIn("saved", server.start)
            shutil.rmtree(folder)
            os.mkdir(folder)


if __name__ == "__main__":
    main()
