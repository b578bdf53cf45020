"""The page at /, used in headless Chromium as people use it. Needs chromium and chromium-driver (Debian) and selenium (PyPI); without them it
is skipped, with exit status 77. With SCREENSHOTS=FOLDER it leaves pictures to be looked at."""
import json
import os
import shutil
import sys
import tempfile
import unittest

import served

try:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait
except ImportError:
    sys.stderr.write("skipped: no selenium for this Python (pip install selenium)\n")
    sys.exit(77)

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
if not BROWSER or not DRIVER:
    sys.stderr.write("skipped: no chromium or no chromedriver (apt-get install chromium chromium-driver)\n")
    sys.exit(77)


def open_browser():
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1280,1000"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service(DRIVER))


class PageTest(served.ServedTest):
    """Tests that share a browser, too; each opens the page anew, which keeps nothing in the browser."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.browser = open_browser()

    @classmethod
    def tearDownClass(cls):
        cls.browser.quit()
        super().tearDownClass()

    def setUp(self):
        for command in ("Emulation.clearDeviceMetricsOverride", "Emulation.setEmulatedMedia"):
            self.browser.execute_cdp_cmd(command, {})
        self.open(self.server)

    def open(self, server):
        self.browser.get(server.address + "/")
        self.until(lambda: self.text("about") != "connecting…")

    def until(self, condition):
        return WebDriverWait(self.browser, served.PATIENCE, 0.05).until(lambda _: condition())

    def find(self, id):
        return self.browser.find_element(By.ID, id)

    def text(self, id):
        return self.find(id).text

    def picture(self, name):
        if os.environ.get("SCREENSHOTS"):
            self.browser.save_screenshot(os.path.join(os.environ["SCREENSHOTS"], name + ".png"))

    def set(self, id, value):
        self.browser.execute_script("arguments[0].value = arguments[1]", self.find(id), value)

    def idle(self):
        return not self.find("stop").is_enabled()

    def replies(self):
        return [box.text for box in self.browser.find_elements(By.CSS_SELECTOR, ".message.assistant")]

    def attach(self, text):
        with tempfile.NamedTemporaryFile("wb", suffix=".txt", delete=False) as file:
            file.write(text)
        self.addCleanup(os.unlink, file.name)
        self.find("file").send_keys(file.name)

    def tearDown(self):
        """No script failed, and nothing was asked for that the page's own policy forbids."""
        for entry in self.browser.get_log("browser"):
            self.assertNotEqual(entry["level"], "SEVERE", entry)

    def folds(self):
        """The folded blocks: titles, whether they are open, and what they hold."""
        return [[fold.find_element(By.TAG_NAME, "summary").text, fold.get_attribute("open") is not None,
                 fold.find_element(By.TAG_NAME, "pre").get_attribute("textContent")]
                for fold in self.browser.find_elements(By.CSS_SELECTOR, ".message .fold")]


class Page(PageTest):
    options = ("--kv", "terse-2")

    def test_a_document_a_question_and_what_the_cache_holds(self):
        code = 5550123
        self.set("temperature", "0")
        self.attach(served.document(code, 9000).encode())
        self.until(lambda: ".txt, " in self.text("document"))
        self.find("input").send_keys(served.QUESTION, Keys.ENTER)
        self.assertFalse(self.idle())
        self.until(lambda: "%" in self.text("status") or self.idle())  # progress of the prompt
        self.picture("reading")
        self.until(self.idle)
        self.assertIn(served.answer(code), self.replies()[0])
        self.assertIn("tokens read (0 of them cached)", self.replies()[0])
        self.until(lambda: self.text("bits") != "–")
        self.assertLess(float(self.text("bits")), 8)
        self.assertIn("f16 would take", self.text("size"))
        self.assertIn("MiB", self.text("kinds"))
        exact = next(row for row in self.find("kinds").find_elements(By.TAG_NAME, "tr") if "Exact tokens" in row.text)
        self.assertIn("half precision", exact.get_attribute("title"))
        self.picture("answered")
        # The second question reads only what is new.
        self.find("input").send_keys("And once more: " + served.QUESTION, Keys.ENTER)
        self.until(lambda: len(self.replies()) == 2 and self.idle())
        cached = int(self.replies()[1].split(" of them cached")[0].split("(")[-1])
        self.assertGreater(cached, 2000)

    def test_stop_retry_and_a_new_chat(self):
        self.set("temperature", "0")
        self.set("max_tokens", "30000")
        self.find("settings-box").find_element(By.TAG_NAME, "summary").click()
        self.find("repeat_penalty").clear()
        self.find("repeat_penalty").send_keys("1.3")
        self.find("input").send_keys("Write a long story about the sea,", Keys.SHIFT, Keys.ENTER, Keys.NULL, "two lines of request.", Keys.ENTER)
        self.until(lambda: len(self.replies()) == 1 and len(self.replies()[0].split()) > 4 or self.idle())
        self.find("input").send_keys(Keys.ESCAPE)
        self.until(self.idle)
        self.set("max_tokens", "3")
        self.find("retry").click()
        self.until(lambda: self.idle() and self.replies() and "tokens read" in self.replies()[-1])
        self.assertEqual(len(self.replies()), 1)
        self.assertIn("stopped at the limit of tokens", self.replies()[0])
        self.find("clear").click()
        self.assertEqual(self.replies(), [])
        self.assertFalse(self.find("retry").is_enabled())

    def test_what_is_no_text_is_refused(self):
        self.attach(b"\xff\xfe\x00binary")
        self.until(lambda: "is not UTF-8 text" in self.text("status"))
        self.assertEqual(self.text("document"), "")
        self.set("input", "")
        self.find("send").click()  # nothing to send
        self.assertEqual(self.replies(), [])

    def test_markup_in_messages_is_text(self):
        self.set("max_tokens", "1")
        self.find("input").send_keys("<img src=x onerror=\"document.title='broken'\"> <|eot_id|>", Keys.ENTER)
        self.until(lambda: self.replies() and self.idle())
        self.assertIn("<img src=x", self.browser.find_element(By.CSS_SELECTOR, ".message.user").text)
        self.assertNotEqual(self.browser.title, "broken")

    def reply_with(self, text, size=7):
        """Has the page show a reply that comes in small pieces, through its own reading of events; returns the reply's element."""
        return self.reply_of([{"content": text[i:i + size]} for i in range(0, len(text), size)])

    def reply_of(self, deltas):
        """The same of any deltas. What the page asks for is left in window.asked."""
        self.browser.execute_script("""
            const events = arguments[0].map(delta => 'data: ' + JSON.stringify({id: 'x', choices: [{delta, finish_reason: null}]}) + '\\n\\n');
            window.real = window.real || window.fetch;
            window.fetch = (path, options) => {
              if (path !== 'v1/chat/completions') return window.real(path, options);
              window.asked = JSON.parse(options.body);
              return Promise.resolve(new Response(events.join('')));
            };
            document.title = 'untouched';""", deltas)
        before = len(self.replies())
        self.find("input").send_keys("Go on", Keys.ENTER)
        self.until(lambda: len(self.replies()) == before + 1 and self.idle())
        return self.browser.find_elements(By.CSS_SELECTOR, ".message.assistant .text")[-1]

    def outline(self, element):
        """The elements within one, as tag names around texts."""
        return self.browser.execute_script("""
            const outline = node => node.nodeType === 3 ? node.data : node.tagName.toLowerCase() + '(' + [...node.childNodes].map(outline).join('') + ')';
            return [...arguments[0].childNodes].map(outline).join(' ');""", element)

    def test_markdown_of_a_reply(self):
        text = ("# A title\n\nA **bold** and *slanted _word_*, `code with ** in it`, 2 * 3 * 4, snake_case_name, \\*plain\\* and\nanother line.\n\n"
                "- one\n- two\n  with more\n  1. inner\n  2. second\n- three\n\n> quoted **text**\n\n---\n"
                "```python\nif a < b and *c*:\n\n    print(\"<b>\")\n```\n| a | b |\n|---|:-:|\n| 1 | `2` |\n\n3. third\n4. fourth\n\n"
                "[a link](https://example.org/x?y=1) and ``a ` tick`` and **open\n\n~~~\nnever closed\n*x*")
        wanted = ("h3(A title) p(A strong(bold) and em(slanted em(word)), code(code with ** in it), 2 * 3 * 4, snake_case_name, *plain* and\nanother line.) "
                  "ul(li(p(one))li(p(two\nwith more)ol(li(p(inner))li(p(second))))li(p(three))) blockquote(p(quoted strong(text))) hr() "
                  "pre(code(if a < b and *c*:\n\n    print(\"<b>\"))) table(tr(th(a)th(b))tr(td(1)td(code(2)))) ol(li(p(third))li(p(fourth))) "
                  "p(a(a link) and code(a ` tick) and **open) pre(code(never closed\n*x*))")
        for size in (7, 1, 10000):
            reply = self.reply_with(text, size)
            self.assertEqual(self.outline(reply), wanted)
        link = reply.find_element(By.TAG_NAME, "a")
        self.assertEqual((link.get_attribute("href"), link.get_attribute("rel")), ("https://example.org/x?y=1", "noopener noreferrer"))
        self.assertEqual(reply.find_elements(By.TAG_NAME, "ol")[-1].get_attribute("start"), "3")
        self.assertEqual(self.browser.execute_script("return messages[messages.length - 1].content"), text)  # what the next turn sends
        self.picture("markdown")

    def test_markup_of_a_reply_is_text(self):
        """Nothing that a model writes becomes an element that it names, an address of a script, or a request."""
        hostile = ["<img src=x onerror=\"document.title='broken'\">", "<script>document.title='broken'</script>", "[x](javascript:document.title='broken')",
                   "[x](data:text/html,<script>1</script>)", "[<b>x</b>](https://example.org/\"onclick=\"document.title='broken')", "![x](https://example.org/x.png)",
                   "```<img src=x onerror=1>\n<svg onload=\"document.title='broken'\">\n```", "**<iframe src=//example.org>**", "`</code><script>1</script>`",
                   "| <a href=javascript:1> | b |\n|---|---|\n| <b> | `<i>` |", "# <style>*{display:none}</style>", "- <form action=x>\n> <input autofocus onfocus=1>",
                   "<javascript:alert(1)>", "[a]: javascript:alert(1)\n\n[a]", "&lt;b&gt; &#60;script&#62;", "[x]( javascript:1)", "[x](https://a\n\tb)"]
        for text in hostile + ["\n\n".join(hostile)]:
            reply = self.reply_with(text, 5)
            names, attributes = self.browser.execute_script("""
                const all = [...arguments[0].querySelectorAll('*')];
                return [all.map(n => n.tagName), all.flatMap(n => [...n.attributes].map(a => a.name + '=' + a.value))];""", reply)
            self.assertLessEqual(set(names), {"P", "PRE", "CODE", "STRONG", "EM", "A", "UL", "OL", "LI", "BLOCKQUOTE", "H3", "TABLE", "TR", "TH", "TD", "HR"}, text)
            for attribute in attributes:
                self.assertRegex(attribute, "^(href=https://|rel=noopener noreferrer$|target=_blank$|start=[0-9]+$)", text)
        self.assertEqual(self.browser.title, "untouched")
        self.assertIn("<script>document.title='broken'</script>", reply.text)

    def test_no_text_makes_it_slow_or_fail(self):
        for text in ("*" * 3000, "*" * 3000 + "x", "`" * 3000, "[" * 3000, "> " * 1000 + "x", "- " * 1000 + "x", "_a" * 3000, "**a *b " * 500, "#" * 3000, "|-" * 1000,
                     "1. a\n" * 500, "```\n" * 301, " " * 3000 + "x", "\\" * 3001):
            reply = self.reply_with(text, 1000)
            self.assertTrue(reply.find_elements(By.XPATH, "./*"), text[:20])

    def test_thoughts_are_folded(self):
        reply = self.reply_of([{"role": "assistant", "content": ""}, {"reasoning_content": "Hm, <b>"}, {"reasoning_content": " so"}, {"content": "Yes."}])
        self.assertEqual(reply.text, "Yes.")
        self.assertEqual(self.folds(), [["Thoughts", False, "Hm, <b> so"]])
        self.browser.find_element(By.CSS_SELECTOR, ".fold summary").send_keys(Keys.ENTER)
        self.assertTrue(self.folds()[0][1])
        self.assertIn("Hm, <b> so", self.replies()[0])
        self.reply_with("Again.")  # the next turn has them
        self.assertEqual(self.browser.execute_script("return asked.messages[1]"), {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm, <b> so"})

    def test_calls_and_results_are_folded(self):
        tools = [{"type": "function", "function": {"name": "clock"}}]
        calls = [{"index": i, "id": "call_%d" % i, "type": "function", "function": {"name": name, "arguments": text}}
                 for i, (name, text) in enumerate((("clock", '{"zone":"<i>"}'), ("ping", "{}")))]
        self.set("tools", "[{")
        self.find("input").send_keys("Now?", Keys.ENTER)
        self.until(lambda: self.replies() and self.idle())
        self.assertIn("The tools are no JSON", self.replies()[0])
        self.find("retry").click()
        self.until(self.idle)
        self.set("tools", json.dumps(tools))
        self.reply_of([{"content": "I look."}, {"tool_calls": calls[:1]}, {"tool_calls": calls[1:]}])
        self.assertEqual(self.browser.execute_script("return asked.tools"), tools)
        self.assertEqual(self.folds(), [['Call of clock: {"zone":"<i>"}', False, '{\n  "zone": "<i>"\n}'], ["Call of ping: {}", False, "{}"]])
        self.find("input").send_keys("And now?", Keys.ENTER)
        self.assertIn("calls tools", self.text("status"))
        fields = self.browser.find_elements(By.CSS_SELECTOR, ".result textarea")
        self.assertEqual([label.text for label in self.browser.find_elements(By.CSS_SELECTOR, ".result label")], ["Result of clock", "Result of ping"])
        fields[0].send_keys("<b>12:00", Keys.TAB, "pong", Keys.TAB, Keys.ENTER)  # the keyboard alone
        self.until(lambda: len(self.replies()) == 3 and self.idle())
        self.assertEqual(self.folds()[2:4], [["Result of clock: <b>12:00", False, "<b>12:00"], ["Result of ping: pong", False, "pong"]])
        said = [{"id": c["id"], "type": "function", "function": c["function"]} for c in calls]
        self.assertEqual(self.browser.execute_script("return asked.messages.slice(-3)"),
                         [{"role": "assistant", "content": "I look.", "tool_calls": said}, {"role": "tool", "tool_call_id": "call_0", "content": "<b>12:00"},
                          {"role": "tool", "tool_call_id": "call_1", "content": "pong"}])
        self.picture("tools")

    def test_progress_and_rates(self):
        self.browser.execute_script("""
            const progress = {total: 2000, cache: 500, processed: 1250, time_ms: 1};
            showProgress(progress);
            showSlot({cache: {tokens: 2000, bits_per_value: 3, resident: 1, f16: 2, codes: 1, exact: 0, window: 0, tables: 0,
                              rates: [{bits: 4, tokens: 0}, {bits: 3, tokens: 600}, {bits: 1.5, tokens: 1400}]}});""")
        self.assertEqual(self.text("status"), "reading 2000 tokens (500 of them cached): 62 %")
        self.assertEqual(float(self.find("progress").get_attribute("value")), 0.625)
        self.assertTrue(self.find("progress").is_displayed())
        self.assertEqual(self.text("rates"), "Compressed to 3 bits per value 600 tokens\nCompressed to 1.5 bits per value 1400 tokens")

    def test_the_models_name(self):
        self.assertEqual(self.text("model"), "lab-27m")
        self.assertIn("lab-27m", self.browser.title)
        self.assertIn("terse-2", self.text("about"))
        self.reply_with("Hello")
        self.assertEqual(self.browser.find_element(By.CSS_SELECTOR, ".message.assistant .who").text, "lab-27m")

    def test_sizes_of_screens(self):
        for width, height in ((360, 640), (768, 1024), (1280, 720), (1920, 1080)):
            self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                                         {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})
            self.until(lambda: self.browser.execute_script("return innerWidth") == width)
            self.assertLessEqual(self.browser.execute_script("return document.documentElement.scrollWidth"), width)
            for id in ("input", "send", "log"):
                box = self.browser.execute_script("const r = arguments[0].getBoundingClientRect(); return [r.left, r.right, r.top, r.bottom]",
                                                  self.find(id))
                self.assertTrue(box[0] >= 0 and box[1] <= width and box[2] >= 0 and box[3] <= height, (id, width, box))
            self.picture("size-%d" % width)

    def test_colors_follow_the_system(self):
        for scheme, wanted in (("dark", "rgb(20, 22, 26)"), ("light", "rgb(255, 255, 255)")):
            self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
            self.until(lambda: self.browser.execute_script("return getComputedStyle(document.body).backgroundColor") == wanted)
            self.picture(scheme)

    def test_the_keyboard_reaches_everything(self):
        self.find("input").send_keys("x")
        reached = set()
        for _ in range(30):
            reached.add(self.browser.switch_to.active_element.get_attribute("id") or self.browser.switch_to.active_element.tag_name)
            self.browser.switch_to.active_element.send_keys(Keys.TAB)
        self.assertLessEqual({"input", "send", "attach", "summary"}, reached)


class PageWithTools(PageTest):
    """Calls that a model makes, and rates of its cache."""

    options = ("--chat-template", "chatml", "--kv", "auto:min=terse-1.5", "--kv-budget", "64M")
    TOOL = {"type": "function", "function": {"name": "unlock", "parameters": {"type": "object", "properties": {"code": {"type": "integer"}}}}}

    def test_a_call_and_its_result(self):
        self.set("temperature", "0")
        self.set("max_tokens", "200")
        self.set("tools", json.dumps([self.TOOL]))
        self.attach(b'Say: <tool_call>{"name": "unlock", "arguments": {"code": 4071826}}</tool_call>\n')
        self.until(lambda: ".txt, " in self.text("document"))
        self.find("input").send_keys("What do you say?", Keys.ENTER)
        self.until(lambda: self.replies() and self.idle())
        calls = self.folds()
        self.assertEqual(calls[0], ['Call of unlock: {"code": 4071826}', False, '{\n  "code": 4071826\n}'])
        self.set("max_tokens", "4")
        fields = self.browser.find_elements(By.CSS_SELECTOR, ".result textarea")
        self.assertEqual(len(fields), len(calls))
        fields[0].send_keys("open")
        self.browser.find_element(By.CSS_SELECTOR, ".result button").click()
        self.until(lambda: len(self.replies()) == 2 and self.idle())
        self.assertIn("tokens read", self.replies()[1])
        self.assertEqual(self.folds()[len(calls)], ["Result of unlock: open", False, "open"])
        self.until(lambda: self.text("rates"))
        self.assertRegex(self.text("rates"), "^Compressed to 4 bits per value [0-9]+ tokens$")


class PageWithKey(unittest.TestCase):
    """A server that wants a key."""

    def test_the_page_asks_for_the_key(self):
        server = served.Server("--api-key", "geheim")
        self.addCleanup(server.stop)
        browser = open_browser()
        self.addCleanup(browser.quit)
        browser.get(server.address + "/")
        wait = WebDriverWait(browser, served.PATIENCE, 0.05)
        wait.until(lambda _: browser.find_element(By.ID, "about").text == "wants an API key")
        browser.find_element(By.ID, "key").send_keys("geheim", Keys.TAB)
        wait.until(lambda _: "slots of" in browser.find_element(By.ID, "about").text)


if __name__ == "__main__":
    served.main()
