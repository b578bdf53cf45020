"""Perplexity and KL divergence beside the command's figures, which other code computes; speeds as far as they do not go by time."""
import os
import re
import tempfile
import unittest

import support

support.need("numpy")
import numpy as np
import terse

CONTEXT, WINDOWS = 300, 2


def printed(output, name):
    return float(re.search(r"^%s = ([-0-9.e]+)" % re.escape(name), output, re.M)[1])


class Quality(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = support.model()
        cls.text = support.article()[:6000]
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.path = os.path.join(cls.folder.name, "text.txt")
        with open(cls.path, "w", encoding="utf-8") as file:
            file.write(cls.text)

    def command(self, *arguments):
        return support.command("perplexity", "-c", str(CONTEXT), "-t", str(support.THREADS), *arguments)

    def test_perplexity_is_the_commands(self):
        for kv in "f16", "terse-1":
            with self.subTest(kv=kv):
                output = self.command("-f", self.path, "--chunks", str(WINDOWS), "--kv", kv)
                found = terse.perplexity(self.model, self.text, kv=kv, context=CONTEXT, windows=WINDOWS)
                self.assertAlmostEqual(found.perplexity, printed(output, "PPL"), delta=2e-4)
                self.assertAlmostEqual(found.error, float(re.search(r"PPL = \S+ \+/- (\S+)", output)[1]), delta=2e-4)
                self.assertEqual(len(found.nll), WINDOWS * (CONTEXT - 1 - CONTEXT // 2))
                self.assertIn("%d bytes resident" % found.cache.resident, output)

    def test_divergence_is_the_commands(self):
        base = os.path.join(self.folder.name, "base")
        self.command("-f", self.path, "--chunks", str(WINDOWS), "--kv", "f16", "--kl-divergence-base", base)
        output = self.command("--kl-divergence-base", base, "--kl-divergence", "--kv", "terse-1")
        found = terse.kl_divergence(self.model, self.text, kv="terse-1", context=CONTEXT, windows=WINDOWS)
        self.assertAlmostEqual(found.mean, printed(output, "KLD mean"), delta=0.01 * found.mean)
        self.assertAlmostEqual(np.median(found.values), printed(output, "KLD median"), delta=0.05 * found.mean)
        self.assertAlmostEqual(100 * found.same_top, printed(output, "same top-1"), delta=0.5)
        self.assertAlmostEqual(found.perplexity, printed(output, "PPL"), delta=2e-4)
        self.assertAlmostEqual(found.base_perplexity, printed(output, "PPL(base)"), delta=2e-3)
        self.assertGreater(found.mean, 5 * found.error)

    def test_a_cache_does_not_diverge_from_itself(self):
        found = terse.kl_divergence(self.model, self.text, kv="q8_0", base="q8_0", context=CONTEXT, windows=1)
        self.assertEqual((found.mean, found.same_top), (0, 1))

    def test_a_text_that_is_too_short(self):
        with self.assertRaisesRegex(ValueError, "too few"):
            terse.perplexity(self.model, "Hello", context=64)

    def test_speed_reads_the_cache(self):
        rows = terse.speed(self.model, kv="q8_0", depths=(0, 256), steps=2)
        self.assertEqual([row.depth for row in rows], [0, 256])
        for row in rows:
            self.assertAlmostEqual(row.tokens_per_second * row.step_seconds, 1)
            self.assertLess(row.attention_seconds, row.step_seconds)


if __name__ == "__main__":
    support.main()
