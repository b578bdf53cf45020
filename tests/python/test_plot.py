"""The plots: what they draw is what was measured, and a picture of each can be written."""
import json
import os
import tempfile
import unittest
import unittest.mock

import support

support.need("numpy", "matplotlib")
import matplotlib

matplotlib.use("Agg")
import numpy as np
import terse
import terse.plot


TEXT = os.path.join(support.ROOT, "tests", "fixtures", "wiki_excerpt.txt")


def divergence(kv, bits, mean):
    report = terse.CacheReport(100, 100, 0, 0, 0, 0, 0, 0, 0, 0, bits)
    return terse.Divergence(kv, mean, mean / 10, np.array([mean]), 0.9, 20.0, 19.0, report)


class Plots(unittest.TestCase):
    def check_written(self, axes):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "plot.png")
            axes.figure.savefig(path)
            self.assertGreater(os.path.getsize(path), 5000)

    def test_divergence_against_bits(self):
        rows = [divergence("terse-2", 2.9, 0.02), divergence("f16", 16.2, 0), divergence("q4_0", 4.9, 0.015), divergence("terse-4", 4.8, 0.002)]
        axes = terse.plot.divergence_against_bits(rows)
        lines = {container.get_label(): container[0].get_xydata().tolist() for container in axes.containers}
        self.assertEqual(lines, {"terse": [[2.9, 0.02], [4.8, 0.002]], "q4_0": [[4.9, 0.015]]})
        self.assertEqual(sorted(text.get_text() for text in axes.texts), ["q4_0", "terse-2", "terse-4"])
        self.assertEqual(axes.get_yscale(), "log")
        self.check_written(axes)

    def test_speed_against_depth(self):
        rows = [terse.Speed("f16", depth, speed, 1 / speed, 0.001) for depth, speed in ((1000, 80.0), (0, 100.0))]
        rows.append(terse.Speed("q8_0", 0, 90.0, 1 / 90, 0.001))
        axes = terse.plot.speed_against_depth(rows)
        lines = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
        self.assertEqual(lines, {"f16": [[0, 100], [1000, 80]], "q8_0": [[0, 90]]})
        self.check_written(axes)

    def test_what_the_command_tuned(self):
        with tempfile.TemporaryDirectory() as folder:
            run = support.run_command("tune", "-t", "1", "-c", "512", "-f", TEXT, "--kv", "q8_0,kivi-2,terse-1",
                                      "-o", "json", cache=folder)
            kept = os.listdir(os.path.join(folder, "terse"))
            with unittest.mock.patch.dict(os.environ, XDG_CACHE_HOME=folder):
                self.assertEqual(terse.Model().session().kv, "terse-1")
        self.assertEqual(len(kept), 1)
        report = json.loads(run.stdout)
        axes = terse.plot.tuned(report)
        by_name = {row["kv"]: [row["bits_per_value"], row["divergence"]] for row in report["rows"]}
        self.assertEqual(axes.lines[0].get_xydata().tolist(), [by_name["q8_0"], by_name["terse-1"]])
        self.assertEqual(sorted(text.get_text().split(",")[0] for text in axes.texts), ["kivi-2", "q8_0", "terse-1"])
        self.check_written(axes)

    def test_axes_may_be_given(self):
        axes = matplotlib.pyplot.figure().subplots()
        self.assertIs(terse.plot.speed_against_depth([terse.Speed("f16", 0, 1.0, 1.0, 0.1)], axes), axes)


if __name__ == "__main__":
    support.main()
