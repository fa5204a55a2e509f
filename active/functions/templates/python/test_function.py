"""Tests of FUNCTION on objects in memory, without an engine."""

import unittest

from sealstone_function.local import run_function


class LongestLineTest(unittest.TestCase):
    def test_longest_line_is_found(self):
        outcome = run_function("FUNCTION.py", [b"one\nthree\n\n", b""])
        self.assertEqual(outcome.status, 0, outcome.log)
        self.assertEqual(outcome.result, b'{"object":0,"longest":5}\n{"object":1,"longest":0}\n')

    def test_line_continues_in_next_chunk(self):
        outcome = run_function("FUNCTION.py", [b"a\n" + b"x" * 3_000_000 + b"\nend"])
        self.assertEqual(outcome.result, b'{"object":0,"longest":3000000}\n')


if __name__ == "__main__":
    unittest.main()
